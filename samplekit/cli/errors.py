"""How the program ends: exit codes, and one sentence for what the user can mend.

An error that passed through the user's own code names the line there; a traceback is left for what
is our fault, and for `samplekit --traceback`.
"""

import contextlib
import functools
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import typer

# 1 is said by `diagnose` alone; 130 is what a shell reports for a program that Ctrl-C ended, and 70
# (sysexits.h) is our fault.
NOT_TRUSTED, BAD_INPUT, OUR_FAULT, INTERRUPTED = 1, 2, 70, 130

_full = False


def show_tracebacks(*, wanted: bool) -> None:
    """Choose whether errors come with their traceback."""
    global _full
    _full = wanted


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """End with a code and a sentence, whatever is raised inside."""
    from samplekit.core.errors import SamplekitError

    try:
        yield
    except (typer.Exit, typer.Abort, BrokenPipeError):
        raise  # meant so; or the reader has gone (`| head`): typer ends quietly
    except KeyboardInterrupt as error:
        _end("interrupted", INTERRUPTED, error)
    except (SamplekitError, OSError) as error:
        line = own_line(error)
        text = str(error) if isinstance(error, SamplekitError) else _sentence(error)
        _end(f"{_place(line)}: {text}" if line else text, BAD_INPUT, error)
    except Exception as error:
        line = own_line(error)
        if line is None:
            traceback.print_exc()
            text = "an error that nobody foresaw, see above. If it is not your model's, report it."
            _end(text, OUR_FAULT, error, told=True)
        inside = "" if line.name == "<module>" else f", in {line.name}"
        text = f"{_place(line)}{inside}: {_sentence(error)}"
        _end(f"{text}\n    {line.line}" if line.line else text, BAD_INPUT, error)


def _end(text: str, code: int, error: BaseException, *, told: bool = False) -> NoReturn:
    if _full and not told:
        traceback.print_exception(error)
    typer.echo(f"{typer.style('samplekit:', fg='red', bold=True)} {text}", err=True)
    raise typer.Exit(code) from error


def own_line(error: BaseException) -> traceback.FrameSummary | None:
    """Return the line of the user's code where an error, or what caused it, came from."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    for link in reversed(chain):
        if isinstance(link, SyntaxError) and link.filename and _is_own(link.filename):
            text = (link.text or "").strip()
            return traceback.FrameSummary(link.filename, link.lineno or 1, "<module>", line=text)
        frames = traceback.extract_tb(link.__traceback__)
        own = [frame for frame in frames if _is_own(frame.filename)]
        if own:
            return own[-1]
    return None


def _is_own(filename: str) -> bool:
    path = Path(filename)
    return not filename.startswith("<") and not any(map(path.is_relative_to, _libraries()))


@functools.cache
def _libraries() -> tuple[Path, ...]:
    """Return the folders of code that is not the user's: Python, its packages, samplekit."""
    paths = sysconfig.get_paths()
    folders = [Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return (*folders, Path(__file__).parents[1])


def _place(line: traceback.FrameSummary) -> str:
    path = Path(line.filename)
    here = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{here}:{line.lineno}"


def _sentence(error: BaseException) -> str:
    """Name an error that is not ours; of a long message (JAX), the first paragraph."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    if isinstance(error, OSError) and error.strerror:
        where = f": {str(error.filename)!r}" if error.filename else ""
        return f"{error.strerror}{where}"
    first = str(error).strip().split("\n\n")[0].replace("\n", " ")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
