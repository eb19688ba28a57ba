"""`samplekit sample` and `samplekit resume`: make a run, or more of it."""

import contextlib
import dataclasses
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from samplekit.cli import options as opt
from samplekit.cli.errors import INTERRUPTED, explained
from samplekit.core.errors import SettingsError, StoreError

if TYPE_CHECKING:
    import xarray as xr

    from samplekit.diagnostics.findings import Diagnosis

commands = typer.Typer()


@commands.command("sample")
def _sample(
    *,
    model: opt.Model,
    kernel: opt.KernelName = None,
    settings: opt.KernelSettings = None,
    data: opt.Data = None,
    chains: opt.Chains = 4,
    draws: opt.Draws = 1000,
    warmup: opt.Warmup = 1000,
    thin: opt.Thin = 1,
    seed: opt.Seed = 0,
    until_rhat: opt.UntilRhat = None,
    until_ess: opt.UntilEss = None,
    keep_warmup: opt.KeepWarmup = False,
    store: opt.Store = None,
    output: opt.Output = None,
    distributed: opt.Distributed = False,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Sample a target, store the run, and say whether to trust it.

    Example: samplekit sample model.py:target --kernel nuts --store run.zarr

    The run grows on disk while it is sampled. After Ctrl-C (exit code 130) or a
    crash it goes on with samplekit resume. Exit code 0 means that it is finished;
    samplekit diagnose judges it.
    """
    with explained():
        import samplekit as sk
        from samplekit.cli.kernels import make_kernel
        from samplekit.cli.load import load_target
        from samplekit.cli.output import stdout_kept

        first = _connect(store, wanted=distributed)
        until = _stop_rule(until_rhat, until_ess)
        place = _free_place(store, model) if first else Path(store or "")
        _check_output(output)
        with stdout_kept(native=distributed):
            target = load_target(model, data)
            chosen = make_kernel(kernel, settings or [], target)
            with _no_empty_run(place) if first else contextlib.nullcontext():
                run = sk.sample(
                    target,
                    chosen,
                    chains=chains,
                    draws=draws,
                    warmup=warmup,
                    thin=thin,
                    seed=seed,
                    until=until,
                    keep_warmup=keep_warmup,
                    store=place,
                    progress=not quiet,
                )
        made = Made(run, target, place, _words(model, data), _own_kernel(kernel))
        _finish(made, output, quiet=quiet, as_json=as_json, tell=first)


@commands.command("resume")
def _resume(
    *,
    run: opt.Run,
    model: opt.Model,
    draws: opt.MoreDraws = None,
    kernel: opt.KernelName = None,
    settings: opt.KernelSettings = None,
    data: opt.Data = None,
    output: opt.Output = None,
    distributed: opt.Distributed = False,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Go on with a stored run as if it had never stopped.

    Without --draws it finishes what was asked for. MODEL is what the run was made
    from; --kernel is needed only for a kernel that holds functions.
    """
    with explained():
        import samplekit as sk
        from samplekit.cli.kernels import make_kernel
        from samplekit.cli.load import load_target
        from samplekit.cli.output import note, stdout_kept

        first = _connect(run, wanted=distributed)
        _check_output(output)
        with stdout_kept(native=distributed):
            target = load_target(model, data)
            given = make_kernel(kernel, settings or [], target)
            if first and draws is None and not quiet and _is_finished(run):
                note("the run is finished already; --draws adds to it.")
            tree = sk.resume(run, target, draws=draws, kernel=given, progress=not quiet)
        made = Made(tree, target, run, _words(model, data), _own_kernel(kernel))
        _finish(made, output, quiet=quiet, as_json=as_json, tell=first)


def _connect(store: Path | None, *, wanted: bool) -> bool:
    """Join the other processes, if wanted; tell whether this one is the first, or alone."""
    if not wanted:
        return True
    import jax

    from samplekit.sampling.processes import connect

    connect()
    if store is None and jax.process_count() > 1:
        raise SettingsError("A run of several processes needs a place: add --store run.zarr.")
    return jax.process_index() == 0


def _stop_rule(rhat: float | None, ess: float | None) -> Any:
    if rhat is None and ess is None:
        return None
    from samplekit.sampling.stop import Converged

    given = {"rhat": rhat, "ess": ess}
    try:
        return Converged(**{name: value for name, value in given.items() if value is not None})
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _free_place(store: Path | None, model: str) -> Path:
    """Return where the run goes; nothing that is there is ever overwritten."""
    from samplekit.cli.output import command

    if store is None:
        names = itertools.chain([opt.DEFAULT_STORE], (f"run-{i}.zarr" for i in itertools.count(2)))
        return next(path for path in map(Path, names) if not path.exists())
    if store.exists() and not (store.is_dir() and not any(store.iterdir())):
        raise StoreError(
            f"Something is at {str(store)!r} already. Choose another --store, remove it, or go on "
            f"with the run there: {command('resume', store, model)}"
        )
    return store


def _check_output(output: Path | None) -> None:
    """Refuse a netCDF file that cannot be written, before the work is done."""
    if output is None:
        return
    if output.exists():
        raise StoreError(f"{str(output)!r} exists already. Choose another --output, or remove it.")
    if output.suffix not in {".nc", ".netcdf", ".nc4"}:
        raise SettingsError(
            f"--output {str(output)!r} is written as netCDF: call it something.nc. The Zarr folder "
            "is named by --store."
        )
    if not output.absolute().parent.is_dir():
        raise StoreError(f"There is no folder for {str(output)!r}. Make it first.")


def _write(run: "xr.DataTree", output: Path | None) -> None:
    if output is not None:
        run.to_netcdf(output, engine="h5netcdf")


@contextlib.contextmanager
def _no_empty_run(place: Path) -> Iterator[None]:
    """Take the folder away again if sampling fails before its first step."""
    try:
        yield
    except BaseException:
        from samplekit.sampling.store import Store

        with contextlib.suppress(StoreError):
            if Store.open(place).sampler_attrs["tick"] == 0:
                shutil.rmtree(place)
        raise


def _is_finished(run: Path) -> bool:
    from samplekit.sampling.store import Store

    return bool(Store.open(run).sampler_attrs.get("finished"))


def _words(model: str, data: Path | None) -> list[Any]:
    return [model, *(["--data", data] if data else [])]


def _own_kernel(kernel: str | None) -> list[str]:
    """Return what names a kernel that a run cannot store: one of the user's own."""
    return ["--kernel", kernel] if kernel and ":" in kernel else []


@dataclasses.dataclass(frozen=True)
class Made:
    """A run, what it was made from, where it is, and what the user typed for target and kernel."""

    run: "xr.DataTree"
    target: Any
    place: Path
    words: list[Any]
    kernel: list[str]

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return bool(self.run["sampler"].attrs["interrupted"])


def _finish(made: Made, output: Path | None, *, quiet: bool, as_json: bool, tell: bool) -> None:
    """Write and say what came out, unless another process does; end with 130 if it was stopped."""
    if tell:
        _write(made.run, output)
        _tell(made, quiet=quiet, as_json=as_json)
    if made.interrupted:
        raise typer.Exit(INTERRUPTED)


def _tell(made: Made, *, quiet: bool, as_json: bool) -> None:
    from samplekit.cli.output import print_json, stdout_kept
    from samplekit.diagnostics.diagnose import diagnose

    diagnosis = None
    if made.run["posterior"].sizes["draw"] and (as_json or not quiet):
        with stdout_kept():
            diagnosis = diagnose(made.run, made.target)
    if as_json:
        told = {"ok": None} if diagnosis is None else diagnosis.to_dict()
        print_json({"run": str(made.place), "interrupted": made.interrupted, **told})
    elif quiet:
        typer.echo(made.place)
    else:
        _print(made, diagnosis)


def _print(made: Made, diagnosis: "Diagnosis | None") -> None:
    from samplekit.cli.output import command, console, print_table, print_verdict

    screen, hints = console(), console(stderr=True)
    if diagnosis is not None:
        print_table(screen, diagnosis)
        screen.print()
        print_verdict(screen, diagnosis)
    screen.print(f"{'Interrupted. ' if made.interrupted else ''}Run stored in {made.place}")
    model, *rest = made.words
    if diagnosis is not None and diagnosis.findings:
        judge = command("diagnose", made.place, "--target", model, *rest)
        hints.print(f"What was found, and what to do:  {judge}")
    elif diagnosis is not None:
        hints.print(f"Look at it:  {command('report', made.place)}")
    more = [] if made.interrupted else ["--draws", 1000]
    hints.print(f"Go on:  {command('resume', made.place, *made.words, *made.kernel, *more)}")
