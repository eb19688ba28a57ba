"""Effective draws per second with the program compiled: samplekit beside its peers."""

import math

from tests.bench import targets
from tests.bench.harness import Contender, Outcome, measure_living
from tests.bench.report import Bar, Options, Section, number, with_range, with_spread

# How many times BlackJAX's effective draws per second the issues ask for, of NUTS and of HMC.
BARS = {"schools": 3.0, "logreg25": 3.0, "banana2": 1.0, "gauss100": 1.0, "funnel10": 1.0}
AHEAD = {"schools": 10.0, "banana2": 10.0}
# Gradients on gauss100 as parts of BlackJAX's: of the draws alone, and with warm-up.
GRADIENTS = {"draw_gradients": 0.1, "gradients": 0.33}
# Beyond this R-hat an effective sample size means nothing: not converged.
MOST_RHAT = 1.05
# The slow ones take part in the first rounds only.
FEW_ROUNDS = 2
NOTES = (
    "4 chains, 1000 warm-up steps and 1000 draws, another seed each round; least bulk ESS over the "
    "coordinates, per wall second of the second and later calls: warm-up included, compiling not. "
    "BlackJAX: 4 vmapped chains, one jitted program; NUTS and HMC (10 leapfrogs; banana and funnel "
    "20, gauss100 64) after window_adaptation, MCLMC (unadjusted: biased) 20,000 + 20,000 steps "
    "after its own tuner, every tenth a draw, 2 rounds. NumPyro: vectorized chains. nutpie: the "
    "same JAX density through its Python callback, 2 rounds. emcee: 32 or more walkers, 600 + 3000 "
    "steps, 2 rounds. samplekit: `sk.sample` as called by a user, up to the DataTree. Gradients "
    "count warm-up too. n/c: R-hat above 1.05."
)


def measure(options: Options) -> Section:
    """Measure every target."""
    section = Section("Warm", NOTES)
    for name in targets.NAMES[:3] if options.quick else targets.NAMES:
        print(f"warm, {name}", flush=True)
        outcomes = measure_living(_contenders(name, options), options.rounds, options.log)
        for outcome in outcomes.values():
            for one in outcome.rounds:
                one["ess_per_s"] = one["ess"] / one["wall_s"]
                if one.get("gradients"):
                    one["ess_per_1000"] = 1000 * one["ess"] / one["gradients"]
        section.outcomes[name] = outcomes
        _summarize(section, name, outcomes)
    return section


def _contenders(name: str, options: Options) -> list[Contender]:
    found = [
        Contender.worker("BlackJAX NUTS", "warm", "blackjax", name),
        Contender.worker("samplekit NUTS", "warm", "samplekit", name),
        Contender.worker("samplekit HMC", "warm", "samplekit-hmc", name),
    ]
    if not options.quick:
        found += [
            Contender.worker("NumPyro NUTS", "warm", "numpyro", name),
            Contender.worker("BlackJAX HMC", "warm", "blackjax-hmc", name),
            Contender.worker("BlackJAX MCLMC", "warm", "blackjax-mclmc", name, rounds=FEW_ROUNDS),
        ]
        python = options.samplers_python
        found += [
            Contender.worker(peer, "warm_peers", peer, name, python=python, rounds=FEW_ROUNDS)
            for peer in (("nutpie", "emcee") if python else ())
        ]
    return found


def _flag(outcome: Outcome) -> str:
    bad = sum(r > MOST_RHAT for r in outcome.values("rhat"))
    return f"n/c in {bad} of {len(outcome.rounds)}" if bad else ""


def _summarize(section: Section, name: str, outcomes: dict[str, Outcome]) -> None:
    base, nuts, hmc = (outcomes[n] for n in ("BlackJAX NUTS", "samplekit NUTS", "samplekit HMC"))

    def bar(own: Outcome, least: float) -> Bar:
        flags = [f"{o.name} {o.error or _flag(o)}" for o in (base, own) if o.error or _flag(o)]
        ratio = own.ratio("ess_per_s", base)
        what = f"{name}: ESS/s, {own.name} / BlackJAX NUTS"
        rhat = number(max(own.values("rhat"), default=math.nan), 4)
        remark = "; ".join([*flags, f"R-hat at most {rhat}"])
        return Bar(what, ratio, least, least=True, remark=remark)

    section.bars.append(bar(nuts, BARS[name]))
    if name in AHEAD:
        section.bars.append(bar(hmc, AHEAD[name]))
    for metric, most in GRADIENTS.items() if name == "gauss100" else ():
        what = f"{name}: {metric.replace('_', ' ')}, samplekit NUTS / BlackJAX NUTS"
        section.bars.append(Bar(what, nuts.ratio(metric, base), most))
    rows = [
        (
            outcome.name,
            with_range(outcome, "wall_s"),
            with_range(outcome, "ess"),
            number(max(outcome.values("rhat"), default=math.nan), 4) + f" {_flag(outcome)}",
            number(outcome.median("gradients")),
            number(outcome.median("ess_per_1000")),
            with_range(outcome, "ess_per_s"),
            with_spread(outcome, "ess_per_s", base),
            number(outcome.facts.get("setup_s", math.nan)),
        )
        for outcome in outcomes.values()
    ]
    header = (
        "", "seconds", "ESS", "largest R-hat", "gradients", "ESS per 1000 gradients", "ESS/s",
        "÷ BlackJAX", "first call, s",
    )  # fmt: skip
    section.table(name, header, rows)
