"""What the documentation shows runs: docstrings, README.md and CONTRIBUTING.md."""

import doctest
import importlib
import re
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PAGES = [page for page in ("README.md", "CONTRIBUTING.md") if (ROOT / page).exists()]
BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def modules() -> list[str]:
    """Name the modules from their files, so that a broken one fails its own test only."""
    files = sorted((ROOT / "samplekit").rglob("*.py"))
    parts = [file.relative_to(ROOT).with_suffix("").parts for file in files]
    return [".".join(p).removesuffix(".__init__") for p in parts if p[-1] != "__main__"]


def run(test: doctest.DocTest) -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    if runner.run(test, out=report.append, clear_globs=False).failed:
        pytest.fail("".join(report), pytrace=False)


@pytest.mark.parametrize("module", modules())
def test_docstrings(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for test in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module)):
        run(test)


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a page's blocks in order; they share a namespace, as a reader's session does."""
    monkeypatch.chdir(tmp_path)
    # A real module, because dataclasses and Equinox look their classes' module up.
    session = types.ModuleType(re.sub(r"\W", "_", page.lower()))
    monkeypatch.setitem(sys.modules, session.__name__, session)
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        if block[1].lstrip().startswith(">>>"):
            examples = doctest.DocTestParser().get_examples(block[1], page)
            test = doctest.DocTest(examples, {}, page, str(ROOT / page), line, None)
            test.globs = session.__dict__  # the constructor would copy it
            run(test)
        else:
            # Empty lines in front, so that a traceback names the line of the page.
            exec(compile("\n" * line + block[1], str(ROOT / page), "exec"), session.__dict__)
