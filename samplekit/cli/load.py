"""From what the user typed to a target: files, modules, zoo names, and the model's data."""

import contextlib
import difflib
import functools
import importlib
import inspect
import json
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from samplekit.core.errors import SettingsError, TargetError
from samplekit.targets.numpyro_import import mend_numpyro

_HOW = (
    "Give model.py:name, package.module:name or zoo:banana, where the name is that of a target "
    "(sk.from_energy, ...), of a function that returns one, or of a NumPyro model."
)


def load_target(reference: str, data: Path | None = None) -> Any:
    """Return the target that a reference names, a NumPyro model called with the data."""
    arguments = read_data(data) if data is not None else {}
    place, _, name = reference.partition(":")
    if place == "zoo":
        return _from_zoo(name)
    if "numpyro" in sys.modules:  # perhaps only ArviZ's stand-in, which would be loaded twice
        mend_numpyro()
    found = load_object(reference)
    if _is_target(found):
        if arguments:
            raise SettingsError(
                f"{reference!r} is a target already, so it takes no --data. Name the model, or a "
                "function that returns the target, to give it arguments."
            )
        return found
    if not callable(found):
        raise TargetError(f"{reference!r} is of type {type(found).__name__}, not a target. {_HOW}")
    _check_arguments(found, reference, arguments)
    return _call(found, reference, arguments)


def load_object(reference: str) -> Any:
    """Return the object at `file.py:name` or `module:name`; without a name, the obvious one."""
    place, _, name = reference.partition(":")
    module = _import(place)
    if not name:
        return _obvious(module, place)
    try:
        return functools.reduce(getattr, name.split("."), module)
    except AttributeError as error:
        close = _suggest(name, [n for n in vars(module) if not n.startswith("_")])
        raise TargetError(
            f"{place} has no {name!r}.{close} {_list('It has', _interesting(module))}"
        ) from error


def _import(place: str) -> ModuleType:
    path = Path(place)
    if path.suffix == ".py" or "/" in place or path.is_file():
        return _import_file(path)
    if not all(part.isidentifier() for part in place.split(".")):
        raise TargetError(f"{place!r} is neither a file nor the name of a module. {_HOW}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        with _no_exit(place):
            return importlib.import_module(place)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not f"{place}.".startswith(f"{missing}."):
            raise  # a module that the user's own code imports
        raise TargetError(f"There is no file and no module {place!r}. {_HOW}") from error


def _import_file(path: Path) -> ModuleType:
    """Run a file as Python would run a script, its neighbors importable, but not as __main__."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise TargetError(f"The file {str(path)!r} {what} (looked from {Path.cwd()}). {_HOW}")
    return _run_file(path.resolve(), str(path))


@functools.cache  # a kernel may come from the file of its target
def _run_file(full: Path, called: str) -> ModuleType:
    sys.path.insert(0, str(full.parent))
    # Its own name could hide a module of a library.
    module = ModuleType(f"samplekit_model_{full.stem}")
    module.__file__ = str(full)
    sys.modules[module.__name__] = module  # dataclasses and Equinox look their classes' module up
    with _no_exit(called):
        exec(compile(full.read_bytes(), str(full), "exec"), vars(module))
    return module


@contextlib.contextmanager
def _no_exit(place: str) -> Iterator[None]:
    """Keep a script that ends itself from ending the program without a word."""
    try:
        yield
    except SystemExit as error:
        raise TargetError(
            f"{place} called exit({error.code!r}) while it was imported. Put what should only run "
            'as a script under `if __name__ == "__main__":`.'
        ) from error


def _interesting(module: ModuleType) -> list[str]:
    """Return the names that may be meant: targets, then functions written in the module."""
    public = {n: v for n, v in vars(module).items() if not n.startswith("_")}
    targets = [n for n, v in public.items() if _is_target(v)]
    own = [n for n, v in public.items() if getattr(v, "__module__", None) == module.__name__]
    return targets + [n for n in own if callable(public[n]) and n not in targets]


def _obvious(module: ModuleType, place: str) -> Any:
    """Return what a file without a name after it means."""
    for name in ("target", "model"):
        if hasattr(module, name):
            return getattr(module, name)
    names = _interesting(module)
    targets = [n for n in names if _is_target(getattr(module, n))]
    candidates = targets or names
    if len(candidates) == 1:
        return getattr(module, candidates[0])
    raise TargetError(
        f"{place} has no obvious target. Say which one you mean, as in "
        f"{place}:{candidates[0] if candidates else 'target'}. {_list('It has', candidates)}"
    )


def _is_target(value: Any) -> bool:
    from samplekit.core.protocols import DensityTarget, ScoreTarget

    return not isinstance(value, type) and isinstance(value, DensityTarget | ScoreTarget)


def _from_zoo(name: str) -> Any:
    from samplekit import targets

    if name not in targets.__all__:
        raise TargetError(
            f"The zoo has no {name!r}.{_suggest(name, targets.__all__)} "
            f"{_list('It has', targets.__all__)}"
        )
    maker = getattr(targets, name)
    required = _required(maker)
    if required:
        raise TargetError(
            f"zoo:{name} needs {', '.join(required)}. Make it in a file: "
            f"target = sk.targets.{name}(...), and give model.py:target."
        )
    return maker()


# A function or a class ----------------------------------------------------------------------


def _required(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variable]


def _check_arguments(
    function: Callable[..., Any], reference: str, given: Mapping[str, Any]
) -> None:
    """Refuse data that are not the function's arguments, before it is called."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C: it will complain itself
        return
    called = f"{getattr(function, '__name__', reference)}{signature}"
    try:
        signature.bind(**given)
    except TypeError as error:
        missing = [n for n in _required(function) if n not in given]
        if missing:
            raise TargetError(
                f"{called} needs {', '.join(missing)}. For a NumPyro model give "
                "--data data.json with these keys. An energy, a log density or a score is made a "
                "target in the file: target = sk.from_energy(energy, dim=2), and is then named."
            ) from error
        extra = [n for n in given if n not in signature.parameters]
        raise SettingsError(
            f"The data hold {', '.join(extra)}, which {called} does not take. Remove "
            "them, or give the model an argument of that name."
        ) from error


class _SawSite(BaseException):  # not an Exception, lest the model catch it
    """A NumPyro statement was reached, so this is a model."""


def _call(function: Callable[..., Any], reference: str, arguments: Mapping[str, Any]) -> Any:
    """Call a function for its target, or make one of it if it turns out to be a NumPyro model.

    A statement reached while nothing else handles it is the model's own; one inside a handler may
    be that of a model from which the function makes its target.
    """
    import numpyro.primitives as primitives

    from samplekit.targets.numpyro import from_numpyro
    from samplekit.targets.numpyro_model import numpyro_rules

    class Watch(primitives.Messenger):
        saw = False

        def process_message(self, msg: Any) -> None:
            self.saw = True
            if primitives._PYRO_STACK[-1] is self:
                raise _SawSite

    made = None
    watch = Watch()
    with numpyro_rules(), watch:
        try:
            made = function(**arguments)
        except _SawSite:
            pass
        except Exception:
            if not watch.saw:
                raise
    if _is_target(made):
        return made
    if watch.saw:
        return from_numpyro(function, **arguments)
    raise TargetError(
        f"{reference} returned {type(made).__name__}, no target, and is no NumPyro model either: "
        f"no numpyro.sample was reached. {_HOW}"
    )


# Data ---------------------------------------------------------------------------------------


def read_data(path: Path) -> dict[str, Any]:
    """Return the arguments of a model from a JSON or .npz file."""
    import numpy as np

    if not path.is_file():
        raise SettingsError(
            f"There is no data file {str(path)!r}. Give --data a JSON or .npz file."
        )
    if path.suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise SettingsError(
                f"{str(path)!r} cannot be read as .npz ({error}). Write it with numpy.savez."
            ) from error
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # bytes that are no text as well
        raise SettingsError(f"{str(path)!r} is not JSON: {error}.") from error
    if not isinstance(values, dict):
        raise SettingsError(
            f"{str(path)!r} holds a {type(values).__name__}. Give an object whose keys are the "
            'model\'s arguments, such as {"y": [1.2, 0.4]}.'
        )
    return {name: _as_argument(name, value, path) for name, value in values.items()}


def _as_argument(name: str, value: Any, path: Path) -> Any:
    """Make arrays of lists of numbers; leave single values and names as they are."""
    import numpy as np

    if isinstance(value, dict):
        return {key: _as_argument(f"{name}.{key}", inner, path) for key, inner in value.items()}
    if not isinstance(value, list):
        return value
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise SettingsError(
            f"{name} in {str(path)!r} is a list of lists of different lengths. Give rows of equal "
            "length, or flat lists with an index."
        ) from error
    if array.dtype.kind in "biuf":
        return array
    if array.dtype.kind == "U" and all(isinstance(v, str) for v in value):
        return value
    raise SettingsError(
        f"{name} in {str(path)!r} holds something else than numbers (null, or text among them). "
        "Drop or impute missing values, and number categories from 0."
    )


def _suggest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _list(start: str, names: Iterable[str]) -> str:
    names = list(names)
    return f"{start}: {', '.join(names)}." if names else f"{start} nothing that could be one."
