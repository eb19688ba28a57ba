"""One point of a cost curve: `python -m tests.bench.workers.curves CURVE SIZE`."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.bench.serve import serve
from tests.bench.workers.closed_form import peak_of, stream

LOGISTIC_ROWS = 1000


def sampling(target, kernel, **options):
    """Return a run and the most memory that it took above the start; compiled before."""
    import samplekit as sk

    settings = {"progress": False, "cache": False, **options}

    def run(number):
        found = {}

        def call():
            found["tree"] = sk.sample(target, kernel, seed=number, **settings)

        peak = peak_of(call)

        def after():
            stats = found["tree"].children.get("sample_stats", {})
            steps = float(stats["n_steps"].mean()) if "n_steps" in stats else 1.0
            return {"peak_mib": peak, "leapfrogs": steps}

        return after

    run(10**6)
    return run, {}


def gaussian(size):
    """N(0, I) by NUTS: a gradient costs d, a draw d^(1/4) gradients."""
    import jax.numpy as jnp

    import samplekit as sk

    target = sk.from_log_density(lambda x: -0.5 * jnp.sum(x * x), size)
    return sampling(target, sk.NUTS(metric="diagonal"), warmup=100, draws=100)


def logistic(size):
    """A regression of 1,000 rows by NUTS, two chains: a gradient costs n·d."""
    import jax
    import jax.numpy as jnp

    import samplekit as sk

    random = np.random.default_rng(0)
    rows = jnp.asarray(random.normal(size=(LOGISTIC_ROWS, size)) / np.sqrt(size), jnp.float32)
    answers = jnp.asarray(random.integers(0, 2, LOGISTIC_ROWS), jnp.float32)

    def log_density(x):
        logits = rows @ x
        return jnp.sum(answers * logits - jax.nn.softplus(logits)) - 0.5 * jnp.sum(x * x)

    target = sk.from_log_density(log_density, size)
    return sampling(target, sk.NUTS(metric="diagonal"), warmup=50, draws=50, chains=2)


def chains(size):
    """MALA on the 2-D mixture, 200 steps, of which two are kept."""
    import samplekit as sk
    from tests.bench import energies

    target = sk.from_log_density(energies.jax_log_density("mixture"), 2)
    kernel = sk.MALA(energies.LANGEVIN_STEP, metric=None)
    return sampling(target, kernel, chains=size, warmup=0, draws=2, thin=100, stats=())


def draws(size):
    """MALA on the banana, four chains, every draw into a store."""
    import samplekit as sk

    kernel, target = sk.MALA(0.5, metric=None), sk.targets.banana()
    settings = {"progress": False, "cache": False, "warmup": 0, "stats": ("acceptance_rate",)}

    def sample(number, count):
        folder = Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
        try:
            store = folder / "run.zarr"
            tree = sk.sample(target, kernel, seed=number, draws=count, store=store, **settings)
            return int(tree["posterior"].sizes["draw"])
        finally:
            shutil.rmtree(folder)

    sample(10**6, 2000)

    def run(number):
        peak = peak_of(lambda: sample(number, size // 4))
        return lambda: {"peak_mib": peak}

    return run, {}


CURVES = {
    "gaussian": gaussian,
    "logistic": logistic,
    "chains": chains,
    "draws": draws,
    "rows": lambda size: stream(size, chunk=100_000),
}

if __name__ == "__main__":
    curve, length = sys.argv[1:]
    serve(lambda: CURVES[curve](int(float(length))))
