"""The committed ratios: what `make bench` compares with, so that a loss of speed is seen.

`ratios.json` holds one number for each bar, from a run on an idle machine. A bar that got worse by
more than a fifth is measured a second time; if it is worse again, `make bench` fails.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.bench.report import Bar, Section

PATH = Path(__file__).with_name("ratios.json")
MOST_LOSS = 1.2


def load() -> dict[str, float]:
    """Return the committed ratios by the name of their bar."""
    return json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}


def save(sections: Iterable[Section]) -> None:
    """Commit the ratios of these sections; the others stay."""
    known = load()
    known |= {b.what: round(b.ratio, 4) for s in sections for b in s.bars if math.isfinite(b.ratio)}
    text = json.dumps(dict(sorted(known.items())), indent=1, ensure_ascii=False)
    PATH.write_text(text + "\n", encoding="utf-8")


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
