"""The committed results: what `make bench` compares with, and what the README shows.

`results.json` holds, for each workload, its bars and the medians of every contender, from a run on
an idle machine. A bar that got worse by more than a fifth is measured a second time; if it is worse
again, `make bench` fails.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.harness import Outcome
from tests.bench.report import Bar, Options, Section, machine

PATH = Path(__file__).with_name("results.json")
MOST_LOSS = 1.2


def load() -> dict[str, Any]:
    """Return the committed results by workload."""
    return json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}


def save(sections: Mapping[str, Section], options: Options) -> None:
    """Commit these workloads; the others stay."""
    facts = machine(options)
    known = load()
    for name, section in sections.items():
        known[name] = {
            **{key: facts[key] for key in ("date", "commit", "processor", "cores", "versions")},
            "rounds": options.rounds,
            "load": section.load,
            "bars": {b.what: round(b.ratio, 4) for b in section.bars if math.isfinite(b.ratio)},
            "tables": section.tables,
            "medians": {
                group: {name: _summary(outcome) for name, outcome in found.items()}
                for group, found in section.outcomes.items()
            },
        }
    text = json.dumps(known, indent=1, ensure_ascii=False, sort_keys=True)
    PATH.write_text(text + "\n", encoding="utf-8")


def _summary(outcome: Outcome) -> dict[str, float]:
    """Return the median of every metric that is a number."""
    first = outcome.rounds[0] if outcome.rounds else {}
    names = [n for n, v in first.items() if isinstance(v, int | float)]
    medians = {n: outcome.median(n) for n in names}
    setup = outcome.facts.get("setup_s")
    medians |= {} if setup is None else {"setup_s": setup}
    return {n: float(f"{v:.4g}") for n, v in medians.items() if math.isfinite(v)}


def worse(bar: Bar, known: Mapping[str, float]) -> bool:
    """Tell whether a bar lost more than a fifth of its committed ratio."""
    before = known.get(bar.what)
    if before is None:
        return False
    if not math.isfinite(bar.ratio):
        return True
    if abs(bar.ratio - before) < bar.noise:
        return False
    return bar.ratio * MOST_LOSS < before if bar.least else bar.ratio > before * MOST_LOSS


def regressions(section: Section, known: Mapping[str, float]) -> list[Bar]:
    """Return the bars of a section that got worse."""
    return [bar for bar in section.bars if worse(bar, known)]
