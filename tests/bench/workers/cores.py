"""Compute-bound work on some cores: `python -m tests.bench.workers.cores CASE CORES`."""

import os
import sys

if __name__ == "__main__":  # before NumPy, whose threads would stay where they begin
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[2])])

import numpy as np

from tests.bench.serve import serve


def nuts(count, columns):
    import jax.numpy as jnp

    import samplekit as sk

    random = np.random.default_rng(0)
    rows = jnp.asarray(random.normal(size=(count, columns)), jnp.float32)
    answers = jnp.asarray(random.integers(0, 2, count), jnp.float32)

    def log_density(x):
        logits = rows @ x
        return jnp.sum(answers * logits - jnp.logaddexp(0.0, logits)) - 0.5 * jnp.sum(x * x)

    target = sk.from_log_density(log_density, columns)
    settings = {"warmup": 1000, "draws": 1000, "progress": False, "cache": False}
    return lambda seed: sk.sample(target, sk.NUTS(), seed=seed, **settings)


def mala():
    import samplekit as sk
    from tests.bench import energies

    target = sk.from_log_density(energies.jax_log_density("network"), 64)
    kernel = sk.MALA(energies.LANGEVIN_STEP, metric=None)
    settings = {"chains": 16_384, "warmup": 0, "draws": 1, "thin": 20, "stats": ()}
    settings |= {"progress": False, "cache": False}
    return lambda seed: sk.sample(target, kernel, seed=seed, **settings)


def fit():
    from tests.bench.workers.closed_form import generic_estimator

    model, rows = generic_estimator()
    return lambda seed: model.fit(rows)


def setup(case, count):
    if case.endswith("a device for each"):
        import jax

        jax.config.update("jax_num_cpu_devices", count)
    work = {
        "NUTS": lambda: nuts(1000, 25),
        "NUTS, 4,000 × 50": lambda: nuts(4000, 50),
        "MALA": mala,
        "MALA, a device for each": mala,
        "fit": fit,
    }[case]()
    work(0)

    def run(number):
        work(number + 1)
        return dict

    return run, {}


if __name__ == "__main__":
    serve(lambda: setup(sys.argv[1], int(sys.argv[2])))
