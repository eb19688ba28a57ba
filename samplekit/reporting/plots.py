"""The sections with pictures: the worst scalars, the energies, the divergences, the target."""

from typing import TYPE_CHECKING, Any

import numpy as np

from samplekit.core.errors import TargetError
from samplekit.reporting import charts
from samplekit.reporting.choose import draws_of, flags, worst_first
from samplekit.reporting.markup import Markup, element, join
from samplekit.reporting.numbers import count, fixed
from samplekit.reporting.run_charts import energies, pair, telling_pairs, thinned

if TYPE_CHECKING:
    from samplekit.diagnostics.evidence import Evidence
    from samplekit.diagnostics.findings import Diagnosis

WORST = 6
_GROWTH_POINTS = 10
# A scalar with more draws than this gets half the points: ten would take seconds.
_LONG = 100_000
# Draws that the search for telling pairs looks at, all divergent ones besides.
_PAIR_DRAWS = 4000
_PAIR_SCALARS = 500


def figure(name: str, hint: Any, picture: Markup, **attributes: Any) -> Markup:
    """Return a chart under its name and one sentence on how to read it."""
    caption = element("figcaption", element("b", name), " ", element("span", hint))
    return element("figure", caption, picture, **attributes)


def worst_scalars(diagnosis: "Diagnosis", evidence: "Evidence", goal: float) -> Markup:
    """Return four charts for each of the worst scalars."""
    places = worst_first(diagnosis)[:WORST].tolist()
    draws = np.stack([draws_of(evidence, place) for place in places], axis=2)
    at, bulk, tail = growth(draws)
    parts = []
    for i, place in enumerate(places):
        values = draws[:, :, i]
        shown = charts.most_different(values)
        figures = [
            figure("Trace", "noise, alike in every chain", charts.trace(values, shown)),
            figure("Ranks", "flat where chains agree", charts.ranks(values, shown)),
            figure("Marginal", "one curve a chain", charts.marginal(values, shown)),
            figure(
                "Growth",
                join([_key("bulk", "bulk"), " and ", _key("tail", "tail"), " ESS should rise"]),
                charts.growth(at, bulk[:, i], tail[:, i], goal),
            ),
        ]
        head = element(
            "h3", element("span", evidence.names[place], class_="name"), _numbers(diagnosis, place)
        )
        few = _legend(shown, evidence.chains) if len(shown) < evidence.chains else ""
        body = element("div", *figures, class_="figures")
        parts.append(element("article", head, few, body, class_="scalar"))
    every = evidence.chains <= charts.MOST_CHAINS
    return element(
        "section",
        element("h2", "Worst scalars"),
        element("p", _which(len(places), len(diagnosis.table), goal), class_="hint"),
        _legend(np.arange(evidence.chains), evidence.chains) if every else "",
        *parts,
        id="plots",
    )


def _which(shown: int, scalars: int, goal: float) -> str:
    few = f"The {shown} worst of {scalars:,} scalars" if shown < scalars else "Worst first"
    return f"{few}. The dashed line under Growth is {goal:,.0f} effective draws."


def growth(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return bulk and tail effective sample sizes of the first draws, at about ten lengths.

    Parameters
    ----------
    draws
        Of shape (chain, draw, scalar).

    Returns
    -------
    The lengths, and both sizes of shape (length, scalar).
    """
    from samplekit.sampling.convergence import ess_bulk, ess_tail

    points = _GROWTH_POINTS if draws[:, :, 0].size <= _LONG else _GROWTH_POINTS // 2
    at = np.unique(np.linspace(0, draws.shape[1], points + 1).astype(int)[1:])
    bulk = np.stack([ess_bulk(draws[:, :n]) for n in at])
    tail = np.stack([ess_tail(draws[:, :n]) for n in at])
    return at, bulk, tail


def _key(kind: str, words: str) -> Markup:
    return element("span", words, class_=f"key {kind}")


def _numbers(diagnosis: "Diagnosis", place: int) -> Markup:
    row = diagnosis.table.iloc[place]
    said = (
        f"R-hat {fixed(float(row['r_hat']), 3)} · bulk ESS {fixed(float(row['ess_bulk']), 0)} · "
        f"tail ESS {fixed(float(row['ess_tail']), 0)}"
    )
    codes = flags(diagnosis).get(str(diagnosis.table.index[place]), [])
    links = [
        element("a", code, href=f"#finding-{code}", class_=f"code {severity}")
        for severity, code in dict.fromkeys(codes)
    ]
    return join([" ", element("small", said), *links])


def _legend(shown: np.ndarray, chains: int) -> Markup:
    keys = [
        element("span", f"chain {c}", class_=f"key {charts.color(i)}") for i, c in enumerate(shown)
    ]
    few = f" The {len(shown)} most different of {chains:,} chains." if len(shown) < chains else ""
    return element("p", join(keys, " "), few, class_="legend")


def energy(evidence: "Evidence") -> Markup:
    """Return the energy plot of a Hamiltonian run, nothing for any other."""
    values = evidence.stats.get("energy")
    if not evidence.sampler.hamiltonian or values is None or values.shape[1] < 3:
        return Markup("")
    hint = join(
        [
            _key("levels", "energies of the draws"),
            " and ",
            _key("changes", "their change in one draw"),
            ": much narrower changes mean slow exploration of the tails",
        ]
    )
    return figure("Energy", hint, energies(values))


def divergences(evidence: "Evidence") -> Markup:
    """Return the pairs of scalars in which the divergent draws stand apart most."""
    wild = evidence.stats.get("diverging")
    if wild is None or wild.shape != (evidence.chains, evidence.draws) or not wild.any():
        return Markup("")
    wild = wild.astype(bool).ravel()
    calm = thinned(np.flatnonzero(~wild), _PAIR_DRAWS)
    kept = np.sort(np.concatenate([calm, thinned(np.flatnonzero(wild), _PAIR_DRAWS)]))
    places = thinned(np.arange(len(evidence.names)), _PAIR_SCALARS)
    scalars = np.stack([draws_of(evidence, place).ravel()[kept] for place in places.tolist()])
    pairs = telling_pairs(scalars, wild[kept])
    if not pairs:
        return Markup("")
    pictures = [
        pair(
            scalars[other],
            scalars[first],
            wild[kept],
            (evidence.names[places[other]], evidence.names[places[first]]),
        )
        for first, other in pairs
    ]
    name = evidence.names[places[pairs[0][0]]]
    hint = join(
        [
            _key("wild", count(int(wild.sum()), "divergent draw")),
            " gather where the sampler cannot follow; ",
            element("span", name, class_="name"),
            " tells them apart best",
        ]
    )
    head = element("figcaption", element("b", "Divergences"), " ", element("span", hint))
    return element("figure", head, element("div", *pictures, class_="figures"), class_="wide")


def target_picture(target: Any, evidence: "Evidence") -> Markup:
    """Return the target in one or two dimensions with the draws; nothing where there is none."""
    space = getattr(target, "space", None)
    if target is None or (len(evidence.names) if space is None else space.size) > 2:
        return Markup("")
    from samplekit.diagnostics.landscape import survey
    from samplekit.reporting.picture import picture

    try:
        land = survey(target, evidence.variables, None)
    except TargetError as error:  # discrete, or the target of another run
        return element("p", f"No picture of the target: {error}", class_="hint")
    below = "score, arrows uphill" if land.density is None else "density of the target"
    if land.density is not None and len(land.labels) == 2:
        below = "contours hold 20, 40, 60, 80 and 95 % of the target's mass"
    hint = join([_key("target", below), ", ", _key("point", "draws")])
    return figure("Target", hint, picture(land), class_="large")


def whole_run(evidence: "Evidence", target: Any) -> Markup:
    """Return the section with the pictures of the run as a whole, if there are any."""
    parts = [target_picture(target, evidence), energy(evidence), divergences(evidence)]
    if not any(parts):
        return Markup("")
    body = element("div", *parts, class_="panels")
    return element("section", element("h2", "The run as a whole"), body, id="whole")
