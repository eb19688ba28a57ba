"""How often `diagnose` raises a false alarm, and how often it misses a fault.

Runs are simulated in NumPy: exact draws, or Gaussian AR(1) chains mapped to the target by its
quantile function, so every target is exactly stationary with a known autocorrelation.

    .venv/bin/python -m tests.diagnostics.rates [runs] [seed]
"""

import dataclasses
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import xarray as xr
from scipy import special, stats

import samplekit as sk
from samplekit.diagnostics.diagnose import diagnose
from samplekit.diagnostics.findings import Diagnosis
from tests.diagnostics.exact_targets import EXACT, NORMALS, TURNING

CHAINS, DRAWS, DIM = 4, 1000, 5
# Thresholds were chosen by derivation and looked at with seeds below 1000 only.
TABLE_SEED = 20263

type Run = xr.DataTree
type Make = Callable[[np.random.Generator], Run]


# Healthy runs ------------------------------------------------------------------------------------


def ar1(rng: np.random.Generator, ess: float, shape=(CHAINS, DRAWS, DIM)) -> np.ndarray:
    """Draw stationary standard normal chains whose means are worth `ess` draws in all."""
    tau = shape[0] * shape[1] / ess
    phi = (tau - 1) / (tau + 1)
    noise = rng.normal(size=shape)
    noise[:, 1:] *= np.sqrt(1 - phi**2)
    for n in range(1, shape[1]):
        noise[:, n] += phi * noise[:, n - 1]
    return noise


def _correlated(g):
    root = np.linalg.cholesky(0.9 + 0.1 * np.eye(g.shape[-1]))
    return g @ root.T


def _bimodal(g):
    """Two normal modes at ±3, weights 0.4 and 0.6, by their quantile function."""
    grid = np.linspace(-8, 8, 4001)
    cdf = 0.4 * special.ndtr(grid + 3) + 0.6 * special.ndtr(grid - 3)
    return np.interp(special.ndtr(g), cdf, grid)


def _switching(g):
    """Two far modes: the first coordinate says which, as slowly as it moves."""
    return g + 8 * (g[..., :1] > 0.3)


def _funnel(g):
    scale = np.exp(1.5 * g[..., :1])
    return np.concatenate([3 * g[..., :1], scale * g[..., 1:]], axis=-1)


TARGETS = {
    "gaussian": lambda g: g,
    "correlated gaussian": _correlated,
    "student t, 2 degrees": lambda g: stats.t(2).ppf(special.ndtr(g)),
    "cauchy": lambda g: np.tan(np.pi * (special.ndtr(g) - 0.5)),
    "exponential": lambda g: -np.log(special.ndtr(-g)),
    "uniform": special.ndtr,
    "bimodal": _bimodal,
    "modes that switch": _switching,
    "funnel": _funnel,
    "poisson counts": lambda g: stats.poisson(3).ppf(special.ndtr(g)),
}


def run_of(x, *, sample_stats=None, attrs=None, kernel=None, warmup=None) -> Run:
    """Wrap draws (chain, draw, dim) and statistics as a run."""
    groups = {"posterior": xr.Dataset({"x": (("chain", "draw", "x_dim"), x)}, attrs=attrs or {})}
    if sample_stats:
        data = {n: (("chain", "draw"), v) for n, v in sample_stats.items()}
        groups["sample_stats"] = xr.Dataset(data, attrs=attrs or {})
    if kernel:
        groups["sampler"] = xr.Dataset(attrs={"kernel": json.dumps(kernel)})
    if warmup is not None:
        groups["warmup_posterior"] = xr.Dataset({"x": (("chain", "draw", "x_dim"), warmup)})
    return xr.DataTree.from_dict(groups)


def nuts_stats(rng, chains=CHAINS, draws=DRAWS) -> dict[str, np.ndarray]:
    """Statistics as NUTS reports them on a Gaussian that gives no trouble."""
    shape = (chains, draws)
    step = np.repeat(np.exp(rng.normal(-0.3, 0.15, size=(chains, 1))), draws, axis=1)
    energy = rng.chisquare(2 * DIM, size=shape) / 2
    energy[:, 1:] = 0.4 * energy[:, :-1] + 0.6 * energy[:, 1:]
    return {
        "acceptance_rate": rng.beta(9, 1.5, size=shape),
        "diverging": np.zeros(shape, bool),
        "energy": energy,
        "n_steps": rng.integers(3, 8, size=shape),
        "tree_depth": np.full(shape, 3),
        "reached_max_treedepth": np.zeros(shape, bool),
        "nonfinite": np.zeros(shape, np.int32),
        "step_size": step,
    }


def healthy(rng: np.random.Generator, name: str, ess: float) -> Run:
    x = TARGETS[name](ar1(rng, ess))
    return run_of(x, sample_stats=nuts_stats(rng), kernel=NUTS)


def judged_beside_target(rng, name: str, ess: float, kernel: dict[str, Any]) -> Diagnosis:
    """Diagnose exact draws of a target, given that target, as the draws of some kernel."""
    target, draws = EXACT[name]
    x = draws(ar1(rng, ess, (CHAINS, DRAWS, NORMALS)))
    found = nuts_stats(rng)
    found = found if kernel is NUTS else {"step_size": found["step_size"]}
    return diagnose(run_of(x, sample_stats=found, kernel=kernel), target)


# Faults ------------------------------------------------------------------------------------------

NUTS = {"name": "NUTS", "settings": {"max_treedepth": 10}, "exact": True}
LANGEVIN = {"name": "Langevin", "settings": {}, "exact": False}
SCORE_MALA = {"name": "ScoreMALA", "settings": {}, "exact": False}
RANDOM_WALK = {"name": "RandomWalk", "settings": {}, "exact": True}


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault, its size in words, the severity that it must be given at least, and the target."""

    code: str
    size: str
    make: Make
    severity: str = "problem"
    target: Any = dataclasses.field(default=None, compare=False)


def _good(rng, **changes):
    x = changes.pop("x", None)
    x = ar1(rng, changes.pop("ess", 2000)) if x is None else x
    found = {**nuts_stats(rng, *x.shape[:2]), **changes}
    return run_of(x, sample_stats={n: v for n, v in found.items() if v is not None}, kernel=NUTS)


def _changed(rng, change):
    x = ar1(rng, 2000)
    change(x)
    return _good(rng, x=x)


def _one_nan(x):
    x[2, 417, 3] = np.nan


def _whole(value):
    def change(x):
        x[1] = value

    return change


def _freeze_together(x):
    x[:] = 0.7


def _freeze_apart(x):
    x[:] = x[:, :1]


def _freeze_one(x):
    x[2] = x[2, 0]


def _identical(x):
    x[3] = x[0]


def _shift(x):
    x[3, :, 0] += 0.6


def _trend(x):
    x[:, :, 0] += np.linspace(0.5, -0.5, x.shape[1])


def _stuck(rng):
    start = rng.normal(size=(CHAINS, 1, DIM))
    x = np.repeat(start, DRAWS, axis=1)
    return run_of(x, warmup=np.repeat(start, 200, axis=1))


def _rates(rng, mean, *, kernel=NUTS):
    x = ar1(rng, 2000)
    rates = (
        np.full(x.shape[:2], mean)
        if mean in (0, 1)
        else rng.beta(9 * mean, 9 * (1 - mean), (4, 1000))
    )
    return run_of(x, sample_stats={"acceptance_rate": rates}, kernel=kernel)


def _flags(rng, share):
    return rng.random((CHAINS, DRAWS)) < share


def _low_energy(rng):
    """E-BFMI of an AR(1) energy is 2(1 − φ): 0.12 for φ = 0.94."""
    return ar1(rng, CHAINS * DRAWS * 0.06 / 1.94)[:, :, 0]


def _constant_energy(rng):
    energy = nuts_stats(rng)["energy"]
    energy[1] = 3.0
    return energy


def _slow_tails(rng):
    """The sign and the bulk are fresh at every draw, the scale is slow: tails come in spells."""
    slow = ar1(rng, 40)
    x = rng.normal(size=slow.shape) * np.exp(1.2 * slow)
    return _good(rng, x=x)


def _two_modes(rng, weights):
    sides = rng.random((CHAINS, DRAWS, 1)) < np.asarray(weights)[:, None, None]
    return _good(rng, x=rng.normal(size=(CHAINS, DRAWS, DIM)) + 6 * sides)


def _steps_apart(rng):
    step = nuts_stats(rng)["step_size"]
    step[2] /= 8
    return _good(rng, step_size=step)


def _steps_moving(rng):
    step = nuts_stats(rng)["step_size"] * np.exp(np.linspace(0, -0.7, DRAWS))
    return _good(rng, step_size=step)


def _walkers(rng):
    return run_of(ar1(rng, 3000, (32, 1000, DIM)), attrs={"inference_library": "emcee"})


def _unadjusted(rng):
    steps = {"step_size": np.full((CHAINS, DRAWS), 0.3)}
    return run_of(ar1(rng, 1000), sample_stats=steps, kernel=LANGEVIN)


def _biased(dim: int, off: float) -> Fault:
    """ULA on a standard Gaussian: x' = (1 − η²/2)x + ηz, of variance 1/(1 − η²/4) = 1 + off."""
    step = np.sqrt(4 * off / (1 + off))

    def make(rng):
        x = rng.normal(size=(CHAINS, DRAWS, dim))
        x[:, 0] *= np.sqrt(1 + off)
        for n in range(1, DRAWS):
            x[:, n] = (1 - step**2 / 2) * x[:, n - 1] + step * x[:, n]
        found = {"step_size": np.full((CHAINS, DRAWS), step)}
        return run_of(x, sample_stats=found, kernel=LANGEVIN)

    size = f"ULA, variance {off:.0%} too large, dimension {dim}".replace("%", " %")
    return Fault("unadjusted-bias", size, make, target=sk.targets.gaussian(dim))


def _exact(rng, kernel):
    return run_of(rng.normal(size=(CHAINS, DRAWS, 2)), kernel=kernel)


FAULTS = (
    Fault("nonfinite-draws", "one NaN of 20,000 numbers", lambda r: _changed(r, _one_nan)),
    Fault("nonfinite-chain", "one chain NaN", lambda r: _changed(r, _whole(np.nan))),
    Fault("nonfinite-chain", "one chain infinite", lambda r: _changed(r, _whole(np.inf))),
    Fault("single-chain", "1 × 1000 good draws", lambda r: _good(r, x=ar1(r, 1000, (1, 1000, 5)))),
    Fault("too-few-draws", "4 × 50 good draws", lambda r: _good(r, x=ar1(r, 200, (4, 50, 5)))),
    Fault("chains-identical", "chain 3 repeats chain 0", lambda r: _changed(r, _identical)),
    Fault("frozen-together", "all chains at one value", lambda r: _changed(r, _freeze_together)),
    Fault("frozen-apart", "each chain at its own value", lambda r: _changed(r, _freeze_apart)),
    Fault("frozen-chain", "one chain of four", lambda r: _changed(r, _freeze_one)),
    Fault("stuck-at-start", "all draws equal the start", _stuck),
    Fault("acceptance-zero", "rate 0", lambda r: _rates(r, 0)),
    Fault("acceptance-one", "rate 1, random walk", lambda r: _rates(r, 1, kernel=RANDOM_WALK)),
    Fault("acceptance-band", "NUTS at 0.4", lambda r: _rates(r, 0.4), "warning"),
    Fault("nonfinite-proposals", "1 % of steps", lambda r: _good(r, nonfinite=_flags(r, 0.01) * 1)),
    Fault("divergences", "0.5 % of steps", lambda r: _good(r, diverging=_flags(r, 0.005))),
    Fault("divergences", "0.05 % of steps, 3 at least",
          lambda r: _good(r, diverging=np.arange(4000).reshape(4, 1000) % 1900 == r.integers(200)),
          "warning"),
    Fault("tree-depth", "10 % of steps", lambda r: _good(r, reached_max_treedepth=_flags(r, 0.1)),
          "warning"),
    Fault("tree-depth", "90 % of steps", lambda r: _good(r, reached_max_treedepth=_flags(r, 0.9))),
    Fault("ebfmi-low", "E-BFMI 0.12", lambda r: _good(r, energy=_low_energy(r))),
    Fault("ebfmi-undefined", "constant in one chain",
          lambda r: _good(r, energy=_constant_energy(r))),
    Fault("rhat", "one chain of four shifted by 0.6 sd, ESS 2000", lambda r: _changed(r, _shift)),
    Fault("ess-bulk", "true ESS 100", lambda r: _good(r, ess=100)),
    Fault("ess-tail", "scale with ESS 40: tails come in spells", _slow_tails, "warning"),
    Fault("drift", "mean moves by 1 sd in all chains, ESS 2000", lambda r: _changed(r, _trend)),
    Fault("modes-apart", "two chains in either mode", lambda r: _two_modes(r, (0, 0, 1, 1))),
    Fault("mode-weights", "weights 0.42, 0.5, 0.5, 0.58",
          lambda r: _two_modes(r, (0.42, 0.5, 0.5, 0.58))),
    Fault("step-unsettled", "one chain's step 8 times smaller", _steps_apart, "warning"),
    Fault("step-unsettled", "step halves during the draws", _steps_moving),
    Fault("bias-unchecked", "Langevin without a target", _unadjusted, "note"),
    Fault("ensemble-walkers", "32 walkers of emcee", _walkers, "note"),
    _biased(1, 0.2),
    _biased(1, 0.4),
    _biased(5, 0.2),
    _biased(5, 0.4),
    Fault("not-a-gradient", "score −x + 0.3 Jx, J a quarter turn", lambda r: _exact(r, SCORE_MALA),
          target=TURNING),
    Fault("wrong-target", "normal draws, target 1.3 times as wide", lambda r: _exact(r, NUTS),
          target=sk.targets.gaussian(2, 1.3**2)),
)  # fmt: skip

SEVERITIES = ("problem", "warning", "note")


# Rates -------------------------------------------------------------------------------------------


def false_alarms(
    runs: int, ess: tuple[float, ...], seed: int, kernel: dict[str, Any] | None = None
) -> tuple[float, float, dict[str, int]]:
    """Return the shares of healthy runs with a problem and with any finding, and their codes.

    With a kernel, draws of that kernel are given with their targets.
    """
    problems, any_finding, codes = 0, 0, {}
    names = list(EXACT if kernel else TARGETS)
    for k in range(runs):
        rng = np.random.default_rng([seed, 1, k])
        name, size = names[k % len(names)], ess[k // len(names) % len(ess)]
        if kernel:
            found = judged_beside_target(rng, name, size, kernel)
        else:
            found = diagnose(healthy(rng, name, size))
        problems += not found.ok
        any_finding += bool(found.findings)
        for f in found.findings:
            key = f"{f.severity} {f.code}"
            codes[key] = codes.get(key, 0) + 1
    return problems / runs, any_finding / runs, codes


def misses(fault: Fault, runs: int, seed: int) -> tuple[float, dict[str, int]]:
    """Return the share of faulty runs without the code (or called harmless), and other problems."""
    missed, others = 0, {}
    for k in range(runs):
        rng = np.random.default_rng([seed, 2, FAULTS.index(fault), k])
        found = diagnose(fault.make(rng), fault.target).findings
        grades = [SEVERITIES.index(f.severity) for f in found if f.code == fault.code]
        missed += not grades or min(grades) > SEVERITIES.index(fault.severity)
        for f in found:
            if f.code != fault.code and f.severity == "problem":
                others[f.code] = others.get(f.code, 0) + 1
    return missed / runs, others


GOOD = (4000.0, 2000.0, 1000.0, 1000.0)
HEALTHY = (
    ("independent draws and AR(1) chains, ESS 1000 to 4000", GOOD, None),
    ("AR(1) chains, ESS 400", (400.0,), None),
    (f"as the first, target given ({', '.join(EXACT)}), NUTS", GOOD, NUTS),
    ("the same, of an unadjusted kernel whose bias is nil", GOOD, LANGEVIN),
)


def table(runs: int = 500, seed: int = TABLE_SEED) -> Iterator[str]:
    """Measure everything and yield the lines of the README's table, in Markdown."""
    yield (
        f"| healthy runs ({runs} each: {', '.join(TARGETS)}; 4 × 1000 draws) | called a problem "
        "| any finding |"
    )
    yield "|---|---|---|"
    for words, ess, kernel in HEALTHY:
        problems, findings, codes = false_alarms(runs, ess, seed, kernel)
        said = ", ".join(f"{c} {n}" for c, n in sorted(codes.items(), key=lambda i: -i[1]))
        yield f"| {words} | {problems:.1%} | {findings:.1%} ({said or 'none'}) |"
    yield from ("", f"| code | fault ({runs} runs each) | missed |", "|---|---|---|")
    for fault in FAULTS:
        missed, _ = misses(fault, runs, seed)
        yield f"| `{fault.code}` | {fault.size} | {missed:.1%} |"


if __name__ == "__main__":
    warnings.simplefilter("error")
    given = [int(a) for a in sys.argv[1:]]
    for line in table(*given):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
