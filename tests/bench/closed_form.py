"""Closed-form fits beside scikit-learn, SciPy, a NumPy version, and the products they rest on."""

import math

import numpy as np

from tests.bench.harness import Contender, Outcome, measure_living
from tests.bench.report import Bar, Options, Section, number, with_range, with_spread

GRAPH_NOTES = (
    "A Gaussian graphical model, d = 50, n = 100,000, float64; second and later fits. The bar is "
    "`X.T @ X` alone. GraphicalLasso(alpha=0.01) and GaussianMixture(1) are scikit-learn's."
)
GENERIC_NOTES = (
    "Statistics of one's own, k = 20, d = 5, n = 1,000,000, float64, derivatives by autodiff; "
    "second and later fits. The bar is `J.T @ J` with J (5·10⁶ × 20) given; `numpy` is the same "
    "fit with derivatives written by hand. Memory: the most during a fit, over what was there "
    "before it, the data included."
)
NAMED_NOTES = (
    "One variable, n = 100,000, second and later fits. SciPy maximises the likelihood (location or "
    "scale held), `samplekit` minimises the Hyvärinen score; with errors: the standard errors of "
    "all parameters as well."
)
STREAM_NOTES = (
    "A gamma family fitted to chunks of 10⁶ rows that are drawn on the way, standard errors "
    "included. The exponent is that of seconds as a power of n."
)
FAMILIES = ("gamma", "lognormal", "von_mises")
STREAMS = ("1e6", "1e7", "1e8")


def _compare(section: Section, title: str, outcomes: dict[str, Outcome], base: str) -> None:
    """Add a table of seconds and ratios."""
    section.outcomes[title] = outcomes
    rows = [
        (o.name, with_range(o, "wall_s"), with_spread(o, "wall_s", outcomes[base]))
        for o in outcomes.values()
    ]
    section.table(title, ("", "seconds", f"÷ {base}"), rows)


def graph(options: Options) -> Section:
    """Measure a Gaussian graph."""
    print("graph", flush=True)
    section = Section("Gaussian graph", GRAPH_NOTES)
    kinds = ("product", "samplekit", "mixture", "lasso")
    contenders = [Contender.worker(kind, "closed_form", f"graph-{kind}") for kind in kinds]
    outcomes = measure_living(contenders, options.rounds, options.log)
    _compare(section, "d = 50, n = 100,000", outcomes, "product")
    ratio = outcomes["samplekit"].ratio("wall_s", outcomes["product"])
    section.bars.append(Bar("graph / XᵀX", ratio, 2.0))
    return section


def generic(options: Options) -> Section:
    """Measure statistics of one's own."""
    print("generic", flush=True)
    section = Section("Statistics of one's own", GENERIC_NOTES)
    kinds = ("product", "samplekit", "numpy")
    contenders = [Contender.worker(kind, "closed_form", f"generic-{kind}") for kind in kinds]
    outcomes = measure_living(contenders, options.rounds, options.log)
    _compare(section, "k = 20, d = 5, n = 1,000,000", outcomes, "product")
    own = outcomes["samplekit"]
    section.bars.append(Bar("autodiff / JᵀJ", own.ratio("wall_s", outcomes["product"]), 4.0))
    section.bars.append(Bar("MiB over the data", own.facts.get("peak_mib", math.nan), 200.0))
    return section


def named(options: Options) -> Section:
    """Measure named families beside SciPy."""
    print("named", flush=True)
    section = Section("Named families", NAMED_NOTES)
    for family in FAMILIES:
        contenders = [
            Contender.worker("scipy", "closed_form", "named-scipy", family),
            Contender.worker("samplekit", "closed_form", "named-samplekit", family),
            Contender.worker("with errors", "closed_form", "named-errors", family),
        ]
        outcomes = measure_living(contenders, options.rounds, options.log)
        _compare(section, family, outcomes, "scipy")
    return section


def stream(options: Options) -> Section:
    """Measure streams of growing length."""
    print("stream", flush=True)
    section = Section("A long stream", STREAM_NOTES)
    lengths = STREAMS[:2] if options.quick else STREAMS
    contenders = [Contender.worker(n, "closed_form", "stream", n) for n in lengths]
    outcomes = measure_living(contenders, options.rounds, options.log)
    section.outcomes["stream"] = outcomes
    seconds = [outcomes[n].median("wall_s") for n in lengths]
    exponent = float(np.polyfit(np.log([float(n) for n in lengths]), np.log(seconds), 1)[0])
    section.bars.append(Bar("exponent of n", exponent, 1.05))
    peaks = [max(o.values("peak_mib"), default=math.nan) for o in outcomes.values()]
    section.bars.append(Bar("most MiB over the start", max(peaks), 200.0))
    rows = [
        (n, with_range(outcomes[n], "wall_s"), number(peak))
        for n, peak in zip(lengths, peaks, strict=True)
    ]
    section.table("gamma", ("rows", "seconds", "MiB over the start"), rows)
    return section


MEASURES = {"graph": graph, "generic": generic, "named": named, "stream": stream}
