"""From `--kernel nuts --set step_size=0.1` to a kernel."""

import ast
import dataclasses
import difflib
from collections.abc import Sequence
from typing import Any

from samplekit.core.errors import KernelError, SettingsError

# JSON's words beside Python's.
_WORDS = {"true": True, "false": False, "null": None, "none": None}
# Filled by warm-up; no setting.
_LEARNED = {"turn_time", "learning"}


def kernel_names() -> list[str]:
    """Return the names of the public kernels, without importing one."""
    from samplekit import _HOME

    return sorted(name for name, home in _HOME.items() if home.startswith("samplekit.kernels."))


def make_kernel(name: str | None, options: Sequence[str], target: Any) -> Any:
    """Return the kernel of a name and its options; None leaves the choice to `sk.sample`."""
    settings = dict(read_setting(option) for option in options)
    if name is None:
        if not settings:
            return None
        from samplekit.sampling.settings import default_kernel

        return _make(type(default_kernel(target)), settings)
    if ":" in name:
        return _load(name, settings)
    import samplekit as sk

    known = {n.lower(): n for n in kernel_names()}
    plain = name.lower().replace("-", "").replace("_", "")
    if plain not in known:
        fitting = [n for n, own in known.items() if _fits(getattr(sk, own), target)]
        close = difflib.get_close_matches(plain, known, n=1)
        raise KernelError(
            f"There is no kernel {name!r}.{f' Did you mean {close[0]}?' if close else ''} Those "
            f"that fit this target: {', '.join(fitting)}."
        )
    return _make(getattr(sk, known[plain]), settings)


def _fits(kernel: Any, target: Any) -> bool:
    """Tell whether a kernel suits a target and can be made from words and numbers."""
    from samplekit.sampling.settings import misfit

    return not misfit(target, kernel) and not any(map(_beyond_words, _required(kernel)))


def _required(kernel: type) -> list[dataclasses.Field]:
    absent = dataclasses.MISSING
    fields = dataclasses.fields(kernel) if dataclasses.is_dataclass(kernel) else ()
    return [f for f in fields if f.default is absent and f.default_factory is absent]


def _beyond_words(field: dataclasses.Field) -> str:
    """Say what a field holds that the command line cannot: a function, a kernel, or nothing."""
    if "Callable" in str(field.type):
        return "a function"
    return "kernels" if field.name in ("kernel", "kernels") else ""


def _load(reference: str, settings: dict[str, Any]) -> Any:
    from samplekit.cli.load import load_object

    found = load_object(reference)
    if isinstance(found, type):
        return _make(found, settings)
    if settings:
        raise KernelError(
            f"{reference} is made already, so --set {next(iter(settings))}=... cannot change it. "
            "Set it in the file."
        )
    return found


def read_setting(text: str) -> tuple[str, Any]:
    """Return key and value of KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip().isidentifier():
        raise SettingsError(f"--set {text!r} is not KEY=VALUE, such as step_size=0.1.")
    return key.strip(), _value(value.strip())


def _value(text: str) -> Any:
    """Read a number, a word, a list of numbers (which becomes an array) or plain text."""
    import numpy as np

    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        value = ast.literal_eval(text)
        return np.asarray(value, float) if isinstance(value, list | tuple) else value
    except (ValueError, SyntaxError):
        return text


def _make(kernel: type, settings: dict[str, Any]) -> Any:
    name = kernel.__name__
    fields = dataclasses.fields(kernel) if dataclasses.is_dataclass(kernel) else ()
    known = {f.name: f for f in fields if f.init and f.name not in _LEARNED}
    unknown = [key for key in settings if fields and key not in known]
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, n=1)
        raise KernelError(
            f"{name} has no option {unknown[0]!r}."
            f"{f' Did you mean {close[0]}?' if close else ''} It has: {', '.join(known)}."
        )
    for field in _required(kernel):
        if beyond := _beyond_words(field):
            raise KernelError(
                f"{name} holds {beyond} ({field.name}). Make it in your file, as in "
                f"kernel = sk.{name}(...), and name it: --kernel model.py:kernel."
            )
        if field.name not in settings:
            raise KernelError(f"{name} needs {field.name}: add --set {field.name}=0.1, say.")
    try:
        return kernel(**settings)
    except TypeError as error:  # such as a word where a number belongs
        given = ", ".join(f"{key}={value!r}" for key, value in settings.items())
        raise KernelError(f"{name}({given}) cannot be made: {error}.") from error
