"""The house rules that no linter checks."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "samplekit").rglob("*.py"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60  # without the docstring
MAX_POSITIONAL = 4

# "module.py:Class.function" whose parameters a protocol of another library fixes.
FIXED_BY_PROTOCOL: frozenset[str] = frozenset()

# These talk to the terminal.
MAY_PRINT = {"cli", "demo"}

type Function = ast.FunctionDef | ast.AsyncFunctionDef


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=name(path))


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield every function below a node with its dotted name."""
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{prefix}{child.name}."
            if not isinstance(child, ast.ClassDef):
                yield prefix + child.name, child
        yield from functions(child, inner)


def length(function: Function) -> int:
    """Count the lines from `def` to the end, docstring left out."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def positional(function: Function) -> int:
    arguments = [*function.args.posonlyargs, *function.args.args]
    return len(arguments) - (bool(arguments) and arguments[0].arg in {"self", "cls"})


every_module = pytest.mark.parametrize("path", MODULES, ids=name)


@every_module
def test_size_budget(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    over = [f"file: {lines} lines"] if lines > MAX_FILE_LINES else []
    for called, function in functions(tree(path)):
        if length(function) > MAX_FUNCTION_LINES:
            over.append(f"{called}: {length(function)} lines")
        exempt = f"{path.name}:{called}" in FIXED_BY_PROTOCOL
        if positional(function) > MAX_POSITIONAL and not exempt:
            over.append(f"{called}: {positional(function)} positional parameters")
    assert not over


@every_module
def test_public_module_has_docstring(path: Path) -> None:
    private = path.stem.startswith("_") and path.stem != "__init__"
    assert private or ast.get_docstring(tree(path))


@every_module
def test_no_print(path: Path) -> None:
    top = path.relative_to(ROOT / "samplekit").parts[0].removesuffix(".py")
    calls = [
        node.lineno
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert top in MAY_PRINT or not calls


def test_no_machine_paths() -> None:
    """A path that exists on one machine only has no place in the repository."""
    folder = "|".join(["home", "root", "work", "Users", "opt", "mnt"])
    pattern = re.compile(rf"(?<![\w.~:/$}}\])-])(/({folder})/\w|[A-Z]:\\Users\\)")
    suffixes = {"", ".py", ".md", ".toml", ".txt", ".yaml", ".json", ".html"}
    places = [ROOT.glob("*"), *((ROOT / f).rglob("*") for f in ("samplekit", "tests", "examples"))]
    places.append((ROOT / ".ci").rglob("*"))
    found = []
    for path in (p for place in places for p in place):
        if not path.is_file() or path.suffix not in suffixes or ".zarr" in str(path):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{name(path)}: {match.group()}" for match in pattern.finditer(text)]
    assert not found


def test_pyright_looks_at_folders_that_exist() -> None:
    settings = PYPROJECT["tool"]["pyright"]
    assert [f for f in settings["include"] if not (ROOT / f).is_dir()] == []
    assert settings["strict"] == ["samplekit/core"]


def test_constraints_pin_every_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(pin.url is None and str(pin.specifier).startswith("==") for pin in pins)
    project = PYPROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    versions = {canonicalize_name(p.name): str(p.specifier).removeprefix("==") for p in pins}
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)])


def test_targets_and_kernels_print_what_was_given(key):
    """A repr is for people: what was given, few numbers as numbers, many as a shape."""
    import jax

    import samplekit as sk

    def energy(x):
        return (x**2).sum() / 2

    name = "test_targets_and_kernels_print_what_was_given.<locals>.energy"
    assert repr(sk.from_energy(energy, 2)) == f"Density(fn={name}, sign=-1.0, space=x[2])"
    assert repr(sk.NUTS()) == "NUTS()"
    assert repr(sk.MALA(0.5)) == "MALA(step_size=0.5)"
    assert "float" in repr(sk.targets.gaussian(20))
    traced = sk.MALA(jax.numpy.ones(()), metric=None)
    jax.jit(lambda k: repr(k) and k.step_size)(traced)  # no error
