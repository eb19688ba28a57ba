"""A loss of speed beyond a fifth is seen, in either direction of a bar, and nothing else is."""

import math

import pytest

from tests.bench import ratios
from tests.bench.report import Bar, Section


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
    assert ratios.worse(bar, {"x": 1.0}) is lost
    assert not ratios.worse(bar, {})  # a new bar has nothing to compare with


def test_saving_keeps_what_was_not_measured(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratios, "PATH", tmp_path / "ratios.json")
    ratios.save([Section("a", "", bars=[Bar("one", 1.0, 2.0), Bar("two", 2.0, 2.0)])])
    ratios.save([Section("a", "", bars=[Bar("two", 3.0, 2.0), Bar("none", math.nan, 2.0)])])
    assert ratios.load() == {"one": 1.0, "two": 3.0}
    section = Section("a", "", bars=[Bar("one", 1.3, 2.0), Bar("two", 3.1, 2.0)])
    assert [bar.what for bar in ratios.regressions(section, ratios.load())] == ["one"]
