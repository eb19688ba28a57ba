"""The tables of speed in README.md, made of the committed results and of nothing else."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.bench.harness import ROOT
from tests.bench.report import number

KERNELS = {
    "NUTS": "`NUTS()`",
    "HMC": "`HMC()`",
    "MCLMC": "`MCLMC(adjusted=True)`",
    "MALA": "`MALA()`",
}
NUMPYRO = ("NumPyro vectorized", "NumPyro sequential")
CACHED = tuple(f"{name}, warm cache" for name in NUMPYRO)


@dataclasses.dataclass(frozen=True)
class Row:
    """One contender beside others, in one or several cases of a workload."""

    what: str
    section: str
    cases: Sequence[str]
    own: str
    # Label and contenders, the fastest of which counts; the first is what the ratio is with.
    beside: Mapping[str, Sequence[str]]
    metric: str = "wall_s"
    unit: str = "s"
    scale: float = 1.0
    more_is_better: bool = False

    def cells(self, results: Mapping[str, Any]) -> tuple[str, str, str, str]:
        """Return what was measured, the two sides and how many times as fast one is."""
        cases = [results.get(self.section, {}).get("medians", {}).get(c, {}) for c in self.cases]
        own = [_one(case, (self.own,), self) for case in cases]
        others = {
            n: [_one(case, names, self) for case in cases] for n, names in self.beside.items()
        }
        sides = [
            f"{name} {self._text(values)}"
            for name, values in others.items()
            if any(map(math.isfinite, values))
        ]
        first = next(iter(others.values()))
        faster = [self._faster(a, b) for a, b in zip(own, first, strict=True)]
        return self.what, self._text(own), "; ".join(sides), ", ".join(number(f) for f in faster)

    def _text(self, values: Sequence[float]) -> str:
        return f"{', '.join(number(v * self.scale) for v in values)} {self.unit}".rstrip()

    def _faster(self, own: float, other: float) -> float:
        return own / other if self.more_is_better else other / own


def _one(case: Mapping[str, Any], names: Sequence[str], row: Row) -> float:
    """Return the median of the best of some contenders; NaN where none has it."""
    found = [case[n][row.metric] for n in names if row.metric in case.get(n, {})]
    return (max if row.more_is_better else min)(found, default=math.nan)


def _ess(what: str, target: str, own: str, *beside: str) -> Row:
    peers = {name: (name,) for name in ("BlackJAX NUTS", *beside)}
    return Row(what, "warm", (target,), own, peers, "ess_per_s", "", more_is_better=True)


def _many(energy: str) -> Row:
    where = {"mixture": "a mixture in 2-D", "network": "a network energy in 64-D"}[energy]
    cases = [f"{k}, {energy}, 16,384 chains" for k in ("langevin", "mala", "hmc")]
    beside = {"bare loop": ("floor",), "BlackJAX": ("BlackJAX",), "torchebm": ("torchebm",)}
    what = f"16,384 chains, {where}, a step: Langevin, MALA, HMC"
    return Row(what, "many", cases, "samplekit", beside, "us", "ms", 1e-3)


MODELS = ("schools", "logistic", "banana")
SHAPES = ("784 × 30", "64 × 128")
ROWS = (
    Row("a fresh process to the finished run, 4 × (1000 + 1000): eight schools, logistic "
        "regression 1000 × 25, banana", "cold", MODELS, "samplekit", {"NumPyro": NUMPYRO,
        "BlackJAX by hand": ("BlackJAX by hand",)}),
    Row("the same with `NUTS()`", "cold", MODELS, "samplekit NUTS", {"NumPyro": NUMPYRO}),
    Row("the same with a warm compilation cache on either side", "cold", MODELS,
        "samplekit, warm cache", {"NumPyro": CACHED}),
    Row("`import samplekit`", "import", ("import",), "import samplekit",
        {"`import jax`": ("import jax",)}, "import_s", "ms", 1e3),
    _ess("`HMC()`, effective draws a second: eight schools", "schools", "samplekit HMC",
         "BlackJAX HMC", "BlackJAX MCLMC", "NumPyro NUTS", "nutpie", "emcee"),
    _ess("banana", "banana2", "samplekit HMC", "BlackJAX HMC", "BlackJAX MCLMC"),
    _ess("logistic regression", "logreg25", "samplekit HMC", "BlackJAX HMC", "BlackJAX MCLMC",
         "NumPyro NUTS"),
    _ess("Gaussian, 100-D, condition 10⁴", "gauss100", "samplekit HMC", "BlackJAX HMC",
         "BlackJAX MCLMC", "NumPyro NUTS"),
    _ess("`NUTS()`, the same: eight schools", "schools", "samplekit NUTS"),
    _ess("banana", "banana2", "samplekit NUTS"),
    _ess("logistic regression", "logreg25", "samplekit NUTS"),
    _ess("Gaussian, 100-D, condition 10⁴", "gauss100", "samplekit NUTS"),
    Row("its gradients, warm-up included", "warm", ("gauss100",), "samplekit NUTS",
        {"BlackJAX NUTS": ("BlackJAX NUTS",), "nutpie": ("nutpie",)}, "gradients", "thousand",
        1e-3),
    _many("mixture"),
    _many("network"),
    Row("separate modes, effective draws of the rarest a second: weights 1/5 and 4/5, a grid of 25",
        "tempering", ("1/5 and 4/5", "25 modes"), "Tempering", {"`Cycle` with long jumps":
        ("Cycle",), "`HMC()`": ("HMC",)}, "ess_per_s", "", more_is_better=True),
    Row("its round trips per 1,000 gradients", "tempering", ("1/5 and 4/5", "25 modes"),
        "Tempering", {"": ()}, "round_trips", ""),
    Row("`sk.diagnose`, 4 × 10,000 draws of 200 scalars", "diagnose", ("diagnose",), "sk.diagnose",
        {"`az.summary`": ("az.summary",)}),
    Row("Gaussian graph, d = 50, n = 10⁵: θ̂", "graph", ("d = 50, n = 100,000",), "samplekit",
        {"XᵀX alone": ("product",), "`GaussianMixture(1)`": ("mixture",),
         "`GraphicalLasso`": ("lasso",)}, unit="ms", scale=1e3),
    Row("statistics of one's own, k = 20, d = 5, n = 10⁶", "generic",
        ("k = 20, d = 5, n = 1,000,000",), "samplekit", {"JᵀJ with J given": ("product",),
        "NumPy": ("numpy",)}),
    Row("gamma, lognormal, von Mises, n = 10⁵", "named", ("gamma", "lognormal", "von_mises"),
        "samplekit", {"SciPy's `fit`": ("scipy",)}, unit="ms", scale=1e3),
    Row("Fisher epoch of a machine, 784 × 30, 64 × 128", "boltzmann", SHAPES, "fisher",
        {"three bare products": ("products",), "CD-1": ("cd",), "torch": ("torch",),
         "scikit-learn's `BernoulliRBM`": ("scikit-learn",)}, "ms", "ms"),
    Row("`BernoulliRBM` on digits, 10 epochs", "binary-machines", ("digits",), "samplekit",
        {"scikit-learn": ("scikit-learn",)}),
    Row("Ising field, a spin: 64 × 64, 512 × 512", "fields", ("64 × 64", "512 × 512"),
        "sk.sample, one chain", {"bare checkerboard": ("floor",), "NumPy loop": ("NumPy loop",)},
        "ns", "ns"),
    Row("annealed Langevin, 10,000 particles, 10 × 100 steps of a network", "anneal",
        ("10,000 particles",), "samplekit", {"bare loop": ("floor",), "torch": ("torch",)}),
    Row("denoising training, 2-128-128-2, a batch of 512", "learned", ("denoising",), "samplekit",
        {"bare scan": ("floor",), "torch, fused Adam": ("torch",)}, "ms", "ms"),
    Row("first batch of a training, after the imports", "learned", ("first batch",), "samplekit",
        {"": ()}, "first_s"),
    Row("two cores for one: NUTS, regressions of 1,000 × 25 and 4,000 × 50; MALA, on one device "
        "and on two; a fit", "cores",
        ("NUTS", "NUTS, 4,000 × 50", "MALA", "MALA, a device for each", "fit"),
        "2", {"one core": ("1",)}),
)  # fmt: skip


def speeds(results: Mapping[str, Any]) -> str:
    """Return the table of speeds, with when and where they were measured."""
    rounds = sorted({found["rounds"] for found in results.values()})
    dates = sorted({found["date"][:10] for found in results.values()})
    last = results[max(results, key=lambda name: results[name]["date"])]
    versions = last["versions"]
    shown = ("jax", "numpyro", "blackjax", "nutpie", "emcee", "torchebm", "scikit-learn")
    said = ", ".join(f"{n} {versions[n]}" for n in shown if n in versions)
    lines = [
        f"`make bench`: {_span(rounds)} rounds on {_span(dates)}, {last['cores']} cores of an "
        f"{last['processor']}; {said}.",
        "",
        "| | samplekit | beside | times as fast |",
        "|---|---|---|---|",
        *("| " + " | ".join(row.cells(results)) + " |" for row in ROWS),
    ]
    return "\n".join(lines)


def _span(values: Sequence[Any]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def choice(results: Mapping[str, Any]) -> str:
    """Return the table of kernels on targets with known answers."""
    _, header, rows = results["choice"]["tables"][0]
    names = ["effective draws a second", *(KERNELS[name] for name in header[1:])]
    rows = [["refused" if "KernelError" in cell else cell for cell in row] for row in rows]
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


PARTS = {"bench": speeds, "choice": choice}


def filled(page: str, results: Mapping[str, Any]) -> str:
    """Return a page with the tables between their marks."""
    for name, make in PARTS.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        made = f"{begin}\n{make(results)}\n{end}"
        page = re.sub(f"{begin}.*?{end}", lambda _, made=made: made, page, flags=re.S)
    return page


def update(results: Mapping[str, Any]) -> None:
    """Write the tables into the README."""
    page = ROOT / "README.md"
    page.write_text(filled(page.read_text(encoding="utf-8"), results), encoding="utf-8")
