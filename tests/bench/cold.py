"""Time from a fresh process to the finished run: imports, tracing, compiling and 4 × 2000 steps."""

import tempfile
from pathlib import Path

from tests.bench.harness import Contender, Outcome, measure_fresh
from tests.bench.report import Bar, Options, Section, number, with_range, with_spread

MODELS = ("schools", "logistic", "banana")
NOTES = (
    "The same NumPyro model and data for all, 4 chains, 1000 warm-up steps and 1000 draws, results "
    "in host memory (samplekit: the DataTree). Wall seconds from the start of the process. "
    "samplekit: what `sk.sample(target)` takes by itself, which is HMC; all others NUTS. The "
    "baseline is the faster of NumPyro's two ways to run 4 chains on one device."
)


def measure(options: Options) -> Section:
    """Measure every model."""
    section = Section("Cold start", NOTES)
    for model in MODELS[:1] if options.quick else MODELS:
        print(f"cold, {model}", flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            outcomes = _model(model, options, Path(scratch))
        section.outcomes[model] = outcomes
        _summarize(section, model, outcomes)
    return section


def _model(model: str, options: Options, scratch: Path) -> dict[str, Outcome]:
    def worker(name: str, who: str, **env: str) -> Contender:
        return Contender.worker(name, "cold", who, model, **env)

    def cached(where: str) -> dict[str, str]:
        return {
            "JAX_COMPILATION_CACHE_DIR": str(scratch / where),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }

    warm = [
        worker("samplekit, warm cache", "samplekit-cached", XDG_CACHE_HOME=str(scratch / "user")),
        worker("NumPyro vectorized, warm cache", "numpyro-vectorized", **cached("vectorized")),
        worker("NumPyro sequential, warm cache", "numpyro-sequential", **cached("sequential")),
    ]
    cold = [
        worker("import jax, one small jit", "bare"),
        worker("NumPyro vectorized", "numpyro-vectorized"),
        worker("NumPyro sequential", "numpyro-sequential"),
        worker("samplekit", "samplekit"),
        worker("samplekit NUTS", "samplekit-nuts"),
        worker("BlackJAX by hand", "blackjax"),
    ]
    if options.quick:
        slow = ("NumPyro sequential", "BlackJAX")
        cold, warm = ([c for c in found if not c.name.startswith(slow)] for found in (cold, warm))
    print(" filling the caches", flush=True)
    measure_fresh(warm, 1, options.log)
    print(" measuring", flush=True)
    return measure_fresh([*cold, *warm], options.rounds, options.log)


def _best(outcomes: dict[str, Outcome], *names: str) -> Outcome:
    """Return the fastest contender that ran."""
    ran = [outcomes[n] for n in names if n in outcomes and outcomes[n].rounds]
    return min(ran, key=lambda o: o.median("wall_s"), default=outcomes[names[0]])


def _summarize(section: Section, model: str, outcomes: dict[str, Outcome]) -> None:
    ways = ("NumPyro vectorized", "NumPyro sequential")
    numpyro = _best(outcomes, *ways)
    cached = _best(outcomes, *(f"{way}, warm cache" for way in ways))
    own, own_cached = outcomes["samplekit"], outcomes["samplekit, warm cache"]
    # Which of NumPyro's ways is the faster one changes from run to run: it is no part of the name.
    section.bars += [
        Bar(f"{model}: {what}", one.ratio("wall_s", other), limit, remark=other.name)
        for what, one, other, limit in (
            ("samplekit / NumPyro", own, numpyro, 0.5),
            ("samplekit, warm cache / NumPyro", own_cached, numpyro, 0.45),
            ("samplekit / NumPyro, both with a warm cache", own_cached, cached, 1.0),
        )
    ]
    rows = [
        (
            outcome.name,
            with_range(outcome, "wall_s"),
            number(outcome.median("import_s")),
            number(outcome.median("work_s")),
            number(outcome.median("cpu_s")),
            with_spread(outcome, "wall_s", numpyro),
        )
        for outcome in outcomes.values()
    ]
    header = ("", "seconds in all", "imports", "the rest", "processor s", f"÷ {numpyro.name}")
    section.table(model, header, rows)
