"""Losses of speed beyond a fifth are seen, and the README shows the committed results."""

import math
from pathlib import Path

import pytest

from tests.bench import readme, results
from tests.bench.harness import ROOT, Outcome
from tests.bench.report import Bar, Options, Section

OPTIONS = Options(Path(), rounds=3, quick=False, torch_python="")


@pytest.mark.parametrize(
    ("ratio", "least", "lost"),
    [
        (1.19, False, False),
        (1.21, False, True),
        (0.5, False, False),
        (0.84, True, False),
        (0.83, True, True),
        (3.0, True, False),
        (math.nan, False, True),
        (math.nan, True, True),
    ],
)
def test_what_counts_as_worse(ratio: float, least: bool, lost: bool) -> None:
    bar = Bar("x", ratio, 1.0, least=least)
    assert results.worse(bar, {"x": 1.0}) is lost
    assert not results.worse(bar, {})  # a new bar has nothing to compare with


def section(*bars: Bar, seconds: float = 1.0) -> Section:
    made = Outcome("samplekit", {"setup_s": 2.0}, [{"wall_s": seconds, "text": "no number"}])
    return Section("title", "notes", bars=list(bars), outcomes={"case": {"samplekit": made}})


def test_saving_keeps_what_was_not_measured(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "PATH", tmp_path / "results.json")
    results.save({"a": section(Bar("one", 1.0, 2.0)), "b": section(Bar("two", 2.0, 2.0))}, OPTIONS)
    results.save(
        {"b": section(Bar("two", 3.0, 2.0), Bar("none", math.nan, 2.0), seconds=5.0)}, OPTIONS
    )
    found = results.load()
    assert found["a"]["bars"] == {"one": 1.0}
    assert found["b"]["bars"] == {"two": 3.0}
    assert found["b"]["medians"] == {"case": {"samplekit": {"wall_s": 5.0, "setup_s": 2.0}}}
    again = section(Bar("one", 1.3, 2.0), Bar("new", 9.0, 2.0))
    assert [bar.what for bar in results.regressions(again, found["a"]["bars"])] == ["one"]


def test_the_readme_shows_the_committed_results() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.filled(page, results.load()) == page


def test_every_row_of_the_readme_has_a_number() -> None:
    found = results.load()
    assert [row.what for row in readme.ROWS if "–" in row.cells(found)[1]] == []
