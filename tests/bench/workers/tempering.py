"""Separate modes: `python -m tests.bench.workers.tempering CASE KERNEL`."""

import sys

import jax
import numpy as np

from tests.bench.serve import serve


def build(case, name):
    import samplekit as sk

    if case == "25 modes":
        target = sk.targets.grid()
    else:
        target = sk.targets.mixture([1, 4], [[-5.0, -5.0], [5.0, 5.0]])
    apart = 2.0 if case == "25 modes" else 10.0
    local = sk.HMC(leapfrogs=5)
    kernel = {
        "Tempering": lambda: sk.Tempering(local),
        "Cycle": lambda: sk.Cycle(local, sk.RandomWalk(apart, metric=None)),
        "HMC": lambda: local,
    }[name]()
    return target, kernel


def judge(run, target):
    from arviz_stats.base.array import array_stats

    x = run["posterior"]["x"].values
    mode = np.asarray(jax.vmap(jax.vmap(target.mode_of))(x))
    truth = np.asarray(target.mode_weights)
    inside = (mode[..., None] == np.arange(truth.size)).astype(float)
    ess = np.array([array_stats.ess(inside[..., i], method="mean") for i in range(truth.size)])
    frozen = (inside.std(1) == 0).all(0)  # no chain ever enters or leaves
    ess = np.where(frozen, 0.0, np.nan_to_num(ess))
    error = np.sqrt(truth * (1 - truth) / np.maximum(ess, 1e-12))
    stats = run["sample_stats"]
    trips = float(stats["round_trips"].sum()) if "round_trips" in stats else 0.0
    z = np.max(np.abs(inside.mean((0, 1)) - truth) / error)
    return {
        "z": float(z) if ess.min() > 0 else None,
        "ess": float(ess.min()),
        "round_trips": 1e3 * trips / float(stats["n_steps"].sum()),
    }


def setup(case, name):
    import samplekit as sk

    target, kernel = build(case, name)
    settings = {"chains": 8, "draws": 4000, "thin": 2, "progress": False, "cache": False}

    def sample(seed):
        return sk.sample(target, kernel, seed=seed, **settings)

    sample(0)

    def run(number):
        tree = sample(number + 1)
        return lambda: judge(tree, target)

    return run, {}


if __name__ == "__main__":
    serve(lambda: setup(*sys.argv[1:3]))
