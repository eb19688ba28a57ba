"""The top of the page: the verdict, the numbers behind it, and the findings."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from samplekit.diagnostics.findings import CODES, SEVERITIES, Finding
from samplekit.reporting.markup import Markup, element, join, with_code
from samplekit.reporting.numbers import count, duration, fixed, short

if TYPE_CHECKING:
    from samplekit.diagnostics.evidence import Evidence
    from samplekit.diagnostics.findings import Diagnosis

# Names on a finding's card before the rest is folded away.
_NAMES_SHOWN = 12

_ICONS = {
    "ok": "M5 12.5l4.5 4.5L19 7.5",
    "problem": "M7 7l10 10M17 7L7 17",
    "warning": "M12 5.5v8M12 18v.1",
    "note": "M12 6v.1M12 10.5V18",
}


def icon(kind: str) -> Markup:
    """Return a sign that needs no colour to be told apart."""
    path = element("path", d=_ICONS[kind])
    return element("svg", path, class_=f"icon {kind}", viewBox="0 0 24 24", aria_hidden="true")


def verdict(diagnosis: "Diagnosis", evidence: "Evidence") -> Markup:
    """Return the verdict in plain words, what it is about, and the numbers that matter most."""
    kind = "ok" if diagnosis.ok else "problem"
    words = "Trust these draws" if diagnosis.ok else "Do not trust these draws yet"
    return element(
        "section",
        element("h1", icon(kind), element("span", words)),
        element("p", _counts(diagnosis), class_="lead"),
        element("p", _subject(diagnosis), class_="subject"),
        element("dl", *_tiles(diagnosis, evidence), class_="tiles"),
        id="verdict",
        class_=f"verdict {kind}",
        aria_label="Verdict",
    )


def _counts(diagnosis: "Diagnosis") -> str:
    found = Counter(f.severity for f in diagnosis.findings)
    said = [count(found[s], s) for s in SEVERITIES if found[s]]
    if not said:
        return "Every check that applies to this run was passed."
    joined = " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)
    if diagnosis.ok:
        return f"No problem was found. Read the {joined} below."
    return f"{joined[0].upper()}{joined[1:]}. Each says below what to do next."


def _subject(diagnosis: "Diagnosis") -> str:
    sampler = diagnosis.sampler
    maker = " from ".join(part for part in (sampler.name, sampler.library) if part)
    parts = [
        f"{count(diagnosis.chains, 'chain')} of {count(diagnosis.draws, 'draw')}",
        count(len(diagnosis.table), "scalar"),
        maker,
    ]
    return " · ".join(part for part in parts if part)


def _tiles(diagnosis: "Diagnosis", evidence: "Evidence") -> list[Markup]:
    table, efficiency = diagnosis.table, diagnosis.efficiency
    moving = table[table["sd"].to_numpy(float) != 0]
    moving = moving if len(moving) else table
    tiles = [
        ("Largest R-hat", fixed(_worst(moving["r_hat"], np.max), 3), "1.00 is best"),
        ("Smallest bulk ESS", _whole(_worst(moving["ess_bulk"], np.min)), "for means"),
        ("Smallest tail ESS", _whole(_worst(moving["ess_tail"], np.min)), "for quantiles"),
    ]
    if "diverging" in evidence.stats:
        wild = int(evidence.stats["diverging"].sum())
        share = wild / max(1, evidence.stats["diverging"].size)
        tiles.append(("Divergences", f"{wild:,}", f"{share:.1%} of the draws"))
    speed = efficiency.get("ess_per_second")
    if speed is not None and np.isfinite(speed):
        seconds = efficiency.get("seconds")
        below = f"sampled in {duration(seconds)}" if seconds is not None else "smallest ESS"
        tiles.append(("ESS per second", short(speed), below))
    return [
        element("div", element("dt", name), element("dd", value, element("small", note)))
        for name, value, note in tiles
    ]


def _worst(column: Any, pick: Any) -> float:
    """Return the worst number of a column; an undefined one is worse than any."""
    return float(pick(column.to_numpy(float)))


def _whole(value: float) -> str:
    return f"{value:,.0f}" if np.isfinite(value) else fixed(value, 0)


def findings(diagnosis: "Diagnosis") -> Markup:
    """Return a card for each finding: what was seen, why it matters, what to do."""
    if not diagnosis.findings:
        return Markup("")
    cards = [
        _card(finding, anchor)
        for finding, anchor in zip(diagnosis.findings, _anchors(diagnosis), strict=True)
    ]
    return element("section", element("h2", "Findings"), *cards, id="findings")


def _anchors(diagnosis: "Diagnosis") -> list[str]:
    """Return an id for each finding: its code, numbered from the second of its kind on."""
    seen: Counter[str] = Counter()
    anchors = []
    for finding in diagnosis.findings:
        seen[finding.code] += 1
        again = f"-{seen[finding.code]}" if seen[finding.code] > 1 else ""
        anchors.append(f"finding-{finding.code}{again}")
    return anchors


def _card(finding: Finding, anchor: str) -> Markup:
    words = CODES[finding.code]
    head = element(
        "header",
        icon(finding.severity),
        element(
            "h3",
            element("span", f"{finding.severity}: ", class_="sr"),
            words[0].upper() + words[1:],
        ),
        element("a", finding.code, href=f"#{anchor}", class_="code"),
    )
    parts = [
        element("div", element("dt", name), element("dd", words, more), class_=kind)
        for name, words, more, kind in (
            ("Seen", finding.seen, _names(finding), "seen"),
            ("Why it matters", finding.why, "", "why"),
            ("What to do", with_code(finding.remedy), "", "remedy"),
        )
    ]
    return element(
        "article",
        head,
        element("dl", *parts),
        id=anchor,
        class_=f"card {finding.severity}",
    )


def _names(finding: Finding) -> Markup:
    """Return the scalars that a finding concerns, unless its sentence names them all."""
    labels = finding.variables
    if all(label in finding.seen for label in labels):
        return Markup("")
    chips = [element("span", label, class_="name chip") for label in labels]
    shown, rest = chips[:_NAMES_SHOWN], chips[_NAMES_SHOWN:]
    more = element("details", element("summary", f"{len(rest):,} more"), join(rest, " "))
    return element("div", join(shown, " "), " ", more if rest else "", class_="chips")
