"""One kernel on one target with a known answer: `... choice KERNEL TARGET`."""

import sys

from tests.bench.serve import serve

KERNELS = ("NUTS", "HMC", "MCLMC", "MALA")
ZOO = ("gaussian", "ill_conditioned", "banana", "student_t", "ring", "double_well")
REFERENCE = (
    "arK", "eight_schools_noncentered", "garch11", "gp_regr", "hmm_example", "kidscore_interaction",
    "logearn_interaction", "low_dim_gauss_mix", "nes2000", "sblrc",
)  # fmt: skip
NAMES = (*ZOO, *REFERENCE)


def _target(name):
    """Return the target, and mean, sd and the error of the mean for each variable."""
    import numpy as np

    import samplekit as sk

    if name in ZOO:
        arguments = {"gaussian": (10,), "ill_conditioned": (50, 1e4), "student_t": (2,)}
        target = getattr(sk.targets, name)(*arguments.get(name, ()))
        return target, {"x": (target.mean, np.sqrt(target.variance), 0.0)}
    from tests.test_reference import load

    model, data, truth = load(name)
    known = {
        n: tuple(np.ravel(p[k]) for k in ("mean", "sd", "mcse_mean")) for n, p in truth.items()
    }
    return sk.from_numpyro(model, **data), known


def _sd_error(x, mean, sd):
    """Return the largest relative error of an sd that Monte Carlo error cannot explain."""
    import numpy as np

    from samplekit.sampling.convergence import ess_bulk

    squares = (x - mean) ** 2
    error = squares.std((0, 1)) / np.sqrt(ess_bulk(squares))
    beyond = np.abs(squares.mean((0, 1)) - sd**2) > 4 * error
    return float(np.max(np.where(beyond, np.abs(x.std((0, 1)) / sd - 1), 0.0)))


def setup(kernel, name):
    """Compile, and return what runs one round."""
    import jax
    import numpy as np

    import samplekit as sk
    from samplekit.sampling.convergence import ess_bulk, rank_rhat

    jax.config.update("jax_enable_x64", name in REFERENCE)
    moves = sk.MCLMC(adjusted=True) if kernel == "MCLMC" else getattr(sk, kernel)()
    target, known = _target(name)

    def sample(seed):
        return sk.sample(target, moves, seed=seed, cache=False, progress=False)

    sample(0)

    def run(number):
        tree = sample(number + 1)

        def after():
            worst = {"ess": np.inf, "rhat": 0.0, "z": 0.0, "sd": 0.0}
            for variable, (mean, sd, mcse) in known.items():
                x = tree["posterior"][variable].values.astype(np.float64)
                x = x.reshape(*x.shape[:2], -1)
                ess = ess_bulk(x)
                error = np.hypot(x.std((0, 1)) / np.sqrt(ess), mcse)
                worst["ess"] = min(worst["ess"], float(ess.min()))
                worst["rhat"] = max(worst["rhat"], float(rank_rhat(x).max()))
                worst["z"] = max(worst["z"], float(np.max(np.abs(x.mean((0, 1)) - mean) / error)))
                worst["sd"] = max(worst["sd"], _sd_error(x, mean, sd))
            return worst

        return after

    return run, {}


if __name__ == "__main__":
    serve(lambda: setup(*sys.argv[1:3]))
