"""What a run of the benchmarks leaves behind: Markdown for people, JSON for later comparisons."""

import dataclasses
import datetime
import importlib.metadata
import json
import math
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.harness import ROOT, Outcome

PACKAGES = (
    "samplekit", "jax", "jaxlib", "numpyro", "blackjax", "numpy", "scipy", "scikit-learn", "xarray",
    "arviz",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    folder: Path
    rounds: int
    quick: bool
    torch_python: str  # empty: torchebm is not installed
    samplers_python: str = ""  # empty: nutpie and emcee are not installed

    @property
    def log(self) -> Path:
        """The file that collects what workers write to stderr."""
        return self.folder / "workers.log"


@dataclasses.dataclass(frozen=True)
class Bar:
    """A ratio and the limit that the issue sets for it."""

    what: str
    ratio: float
    limit: float
    least: bool = False  # whether the limit is the least, not the most
    remark: str = ""
    noise: float = 0.0  # a change by less is no loss, as of an exponent near zero

    @property
    def met(self) -> bool:
        """Whether the ratio keeps the limit; a missing measurement does not."""
        return self.ratio >= self.limit if self.least else self.ratio <= self.limit


@dataclasses.dataclass
class Section:
    """The results of one workload."""

    title: str
    notes: str
    tables: list[tuple[str, Sequence[str], list[Sequence[str]]]] = dataclasses.field(
        default_factory=list
    )
    bars: list[Bar] = dataclasses.field(default_factory=list)
    outcomes: dict[str, dict[str, Outcome]] = dataclasses.field(default_factory=dict)
    load: tuple[float, float] = (0.0, 0.0)

    def table(self, title: str, header: Sequence[str], rows: list[Sequence[str]]) -> None:
        """Add a table."""
        self.tables.append((title, header, rows))


def number(value: float, digits: int = 3) -> str:
    """Write a number with a few significant digits."""
    if not math.isfinite(value):
        return "–"
    if abs(value) >= 10**digits:
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}".rstrip(".")


def with_range(outcome: Outcome, metric: str, scale: float = 1.0) -> str:
    """Write the median and the range over the rounds."""
    values = [v * scale for v in outcome.values(metric)]
    if not values:
        return outcome.error or "–"
    middle = number(outcome.median(metric) * scale)
    return f"{middle} [{number(min(values))}, {number(max(values))}]"


def with_spread(outcome: Outcome, metric: str, baseline: Outcome) -> str:
    """Write the ratio to the baseline and the range of ratios round by round."""
    low, high = outcome.spread(metric, baseline)
    return f"{number(outcome.ratio(metric, baseline))} [{number(low)}, {number(high)}]"


def machine(options: Options) -> dict[str, Any]:
    """Return hardware, versions and the commit that was measured."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    versions["python"] = platform.python_version()
    for python, names in (
        (options.torch_python, ("torch", "torchebm")),
        (options.samplers_python, ("nutpie", "emcee")),
    ):
        if python:
            code = f"import importlib.metadata as m; print(*map(m.version, {names!r}))"
            versions |= dict(zip(names, _output(python, "-c", code).split(), strict=False))
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": os.process_cpu_count() if hasattr(os, "process_cpu_count") else os.cpu_count(),
        "memory_gib": round(_memory() / 2**30, 1),
        "system": platform.platform(),
        "commit": _output("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
        "versions": versions,
    }


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def write(sections: dict[str, Section], options: Options) -> tuple[Path, Path]:
    """Write bench.md and bench.json."""
    facts = machine(options)
    markdown, data = options.folder / "bench.md", options.folder / "bench.json"
    markdown.write_text(_markdown(sections, facts, options), encoding="utf-8")
    content = {
        "machine": facts,
        "rounds": options.rounds,
        "quick": options.quick,
        "sections": {
            name: {
                "bars": [dataclasses.asdict(bar) | {"met": bar.met} for bar in section.bars],
                "load": section.load,
                "outcomes": {
                    group: {n: dataclasses.asdict(o) for n, o in found.items()}
                    for group, found in section.outcomes.items()
                },
            }
            for name, section in sections.items()
        },
    }
    data.write_text(json.dumps(content, indent=1, default=str), encoding="utf-8")
    return markdown, data


def bar_rows(section: Section) -> list[Sequence[str]]:
    """Return the bars of a section as rows."""
    rows = []
    for bar in section.bars:
        limit = f"{'≥' if bar.least else '≤'} {number(bar.limit)}"
        met = "–" if math.isnan(bar.ratio) else "yes" if bar.met else "**no**"
        rows.append((bar.what, number(bar.ratio), limit, met, bar.remark))
    return rows


def _markdown(sections: dict[str, Section], facts: dict[str, Any], options: Options) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    parts = [
        "# samplekit against its peers",
        f"{facts['date']}, commit {facts['commit']}. {facts['processor']}, {facts['cores']} cores, "
        f"{facts['memory_gib']} GiB, {facts['system']}.\n{versions}.",
        f"{options.rounds} rounds{' (--quick: no conclusions)' if options.quick else ''}; each "
        "contender in its own process, one at a time, all of them in every round. Medians with "
        "[least, largest]; ratios are of medians, in brackets the range of a round's ratios.",
    ]
    for section in sections.values():
        before, after = section.load
        parts.append(f"## {section.title}")
        parts.append(f"{section.notes} Load average {before:.2f} before, {after:.2f} after.")
        bars = bar_rows(section)
        parts.append(_table(("bar", "ratio", "limit", "met", "remark"), bars) if bars else "")
        for title, header, rows in section.tables:
            parts += [f"### {title}", _table(header, rows)]
    return "\n\n".join(p for p in parts if p) + "\n"


def _table(header: Sequence[str], rows: list[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
