"""What `diagnose` says: findings, each with its reason and its remedy, and the verdict."""

import dataclasses
import html
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

    from samplekit.diagnostics.evidence import Sampler

type Severity = Literal["problem", "warning", "note"]

SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note")

# Every code that a finding may carry, once and for all: scripts and continuous integration match
# on them. `docs` and the report print this table.
CODES: dict[str, str] = {
    "nonfinite-draws": "some draws are NaN or infinite",
    "nonfinite-chain": "a whole chain is NaN or infinite",
    "single-chain": "one chain: nothing to compare it with",
    "too-few-draws": "too few draws for any diagnostic to tell",
    "chains-identical": "chains repeat each other: the same seed was used twice",
    "frozen-together": "all chains stand still at one value",
    "frozen-apart": "all chains stand still, each at its own value",
    "frozen-chain": "some chains stand still, others move",
    "stuck-at-start": "chains never left their start",
    "rhat": "chains disagree: R-hat above 1.01",
    "ess-bulk": "too few effective draws for means and medians",
    "ess-tail": "too few effective draws for the 5 % and 95 % quantiles",
    "drift": "chains still move in one direction: not yet stationary",
    "modes-apart": "chains sit in different modes and never cross",
    "mode-weights": "chains give the modes different weights",
    "acceptance-zero": "every proposal was rejected",
    "acceptance-one": "every proposal was accepted: the steps are far too small",
    "acceptance-band": "the acceptance rate is outside the band of this kernel",
    "nonfinite-proposals": "proposals where the target is not finite",
    "divergences": "trajectories whose energy ran away",
    "tree-depth": "trajectories cut at the largest tree depth",
    "ebfmi-low": "the momentum explores energies too slowly",
    "ebfmi-undefined": "the energy is constant or not finite",
    "step-unsettled": "the step size never settled",
    "ensemble-walkers": "walkers of one ensemble are not independent chains",
    "unadjusted-bias": "the step of an unadjusted kernel is so large that the draws are biased",
    "bias-unchecked": "an unadjusted kernel, and no target to check its bias with",
    "not-a-gradient": "the score is far from the gradient of any density",
    "wrong-target": "the draws do not fit the target that was given",
}

# How many names a sentence lists before it says how many more there are.
_NAMES_SHOWN = 4


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was found in a run.

    Attributes
    ----------
    code
        Stable name, a key of `CODES`.
    severity
        "problem" (do not use the draws as they are), "warning" (look at it) or "note".
    variables
        Labels of the scalars concerned, worst first; empty where it concerns the whole run.
    seen, why, remedy
        What was seen (with the number), why it matters, what to do next.
    """

    code: str
    severity: Severity
    variables: tuple[str, ...]
    seen: str
    why: str
    remedy: str

    def __post_init__(self) -> None:
        """Refuse a code or a severity that the tables do not know."""
        if self.code not in CODES or self.severity not in SEVERITIES:
            raise ValueError(f"Finding({self.code!r}, {self.severity!r}) is in no table.")

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain values."""
        return {**dataclasses.asdict(self), "variables": list(self.variables)}


def named(labels: Iterable[str]) -> str:
    """Join labels for a sentence: the first few, and how many more."""
    labels = list(labels)
    shown = ", ".join(labels[:_NAMES_SHOWN])
    more = len(labels) - _NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings: problems first, otherwise as the checks gave them."""
    return tuple(sorted(findings, key=lambda f: SEVERITIES.index(f.severity)))


@dataclasses.dataclass(frozen=True, repr=False)
class Diagnosis:
    """The verdict on a run; print it.

    Attributes
    ----------
    findings
        What was found, problems first.
    table
        One row a scalar: mean, sd, q5, median, q95, mcse_mean, mcse_sd, ess_bulk, ess_tail, r_hat.
    sampler
        What the run says of its sampler.
    efficiency
        ess_min, seconds, ess_per_second, evaluations, ess_per_evaluation, seconds_to_next_100; None
        where the run does not tell.
    chains, draws
        How many chains, and draws of each.
    """

    findings: tuple[Finding, ...]
    table: "pd.DataFrame"
    sampler: "Sampler"
    efficiency: dict[str, float | None]
    chains: int
    draws: int

    @property
    def ok(self) -> bool:
        """Whether nothing of severity "problem" was found."""
        return not any(f.severity == "problem" for f in self.findings)

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the findings, in their order."""
        return tuple(f.code for f in self.findings)

    @property
    def verdict(self) -> str:
        """The verdict in one line."""
        counts = {s: sum(f.severity == s for f in self.findings) for s in SEVERITIES}
        said = ", ".join(f"{n} {s}{'s' * (n > 1)}" for s, n in counts.items() if n)
        word = "No problem found" if self.ok else "Do not trust these draws yet"
        return f"{word}: {said}." if said else f"{word}."

    @property
    def subject(self) -> str:
        """What was looked at, in one line."""
        parts = [
            f"{self.chains} chain{'s' * (self.chains != 1)} × {self.draws:,} draws",
            f"{len(self.table):,} scalar{'s' * (len(self.table) != 1)}",
        ]
        maker = " by ".join(p for p in (self.sampler.name, self.sampler.library) if p)
        return ", ".join([*parts, maker] if maker else parts)

    def worst(self, rows: int = 5) -> "pd.DataFrame":
        """Return the rows of the table with the fewest effective draws; undefined ones first."""
        least = self.table[["ess_bulk", "ess_tail"]].min(axis=1, skipna=False)
        return self.table.loc[least.sort_values(na_position="first", kind="stable").index[:rows]]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values; NaN and infinity become None."""
        rows = {str(label): row for label, row in self.table.to_dict("index").items()}
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "chains": self.chains,
            "draws": self.draws,
            "sampler": _plain(dataclasses.asdict(self.sampler)),
            "efficiency": _plain(self.efficiency),
            "findings": [f.to_dict() for f in self.findings],
            "table": _plain(rows),
        }

    def __str__(self) -> str:
        lines = [self.verdict, self.subject, ""]
        for finding in self.findings:
            lines.append(f"{finding.severity.upper()}  {finding.code}")
            lines += [f"  {finding.seen}", f"  {finding.why}", f"  → {finding.remedy}", ""]
        worst = self.worst()
        if len(worst) < len(self.table):
            lines.append(f"The {len(worst)} scalars with the fewest effective draws:")
        lines.append(_rounded(worst).to_string())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the diagnosis for a notebook; every name is escaped."""
        colors = {"problem": "#b3261e", "warning": "#8a5a00", "note": "#4a5568"}
        items = "".join(
            f"<li><b style='color:{colors[f.severity]}'>{f.severity}</b> "
            f"<code>{html.escape(f.code)}</code><br>{html.escape(f.seen)} {html.escape(f.why)}"
            f"<br><i>{html.escape(f.remedy)}</i></li>"
            for f in self.findings
        )
        color = "#1b6e3c" if self.ok else colors["problem"]
        return (
            f"<div><p><b style='color:{color}'>{html.escape(self.verdict)}</b><br>"
            f"{html.escape(self.subject)}</p><ul>{items}</ul>"
            f"{_rounded(self.worst(20)).to_html(escape=True)}</div>"
        )


def _rounded(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return the table as text that a person reads."""
    digits = {"ess_bulk": "{:.0f}", "ess_tail": "{:.0f}", "r_hat": "{:.3f}"}
    columns = {str(c): table[c].map(digits.get(str(c), "{:.3g}").format) for c in table.columns}
    return type(table)(columns)


def _plain(value: Any) -> Any:
    """Turn numbers of any kind into JSON's; what JSON has no word for becomes None."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str | None) else str(value)
