"""Look at one large run: `python -m tests.bench.workers.diagnose CONTENDER`."""

import sys

import numpy as np

from tests.bench.serve import serve

CHAINS, DRAWS, VARIABLES = 4, 10_000, 200


def make_run():
    """Return autoregressive chains, healthy, one named scalar each."""
    import arviz as az

    rng = np.random.default_rng(0)
    noise = rng.normal(size=(CHAINS, DRAWS, VARIABLES))
    x = np.empty_like(noise)
    x[:, 0] = noise[:, 0]
    for i in range(1, DRAWS):
        x[:, i] = 0.5 * x[:, i - 1] + np.sqrt(0.75) * noise[:, i]
    return az.from_dict({"posterior": {f"v{i}": x[:, :, i] for i in range(VARIABLES)}})


def samplekit():
    import samplekit as sk

    tree = make_run()
    sk.diagnose(tree)

    def run(_):
        diagnosis = sk.diagnose(tree)
        return lambda: {"rows": len(diagnosis.table), "ok": diagnosis.ok}

    return run, {}


def arviz():
    import arviz as az

    tree = make_run()
    az.summary(tree)

    def run(_):
        table = az.summary(tree)
        return lambda: {"rows": len(table)}

    return run, {}


if __name__ == "__main__":
    serve({"samplekit": samplekit, "arviz": arviz}[sys.argv[1]])
