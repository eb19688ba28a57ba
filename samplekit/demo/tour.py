"""The tour itself: sample, print the table, draw, report."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import samplekit as sk
from samplekit.demo.figures import draw_banana, draw_network, draw_schools, draw_two_modes
from samplekit.demo.folder import claim_folder
from samplekit.demo.targets import Part, parts
from samplekit.diagnostics.diagnose import diagnose
from samplekit.diagnostics.plot_style import styled
from samplekit.reporting.api import report
from samplekit.sampling.convergence import summarize

if TYPE_CHECKING:
    import xarray as xr
    from rich.console import Console
    from rich.table import Table

# Each figure, and the runs it needs.
FIGURES = {
    "two-modes.png": (draw_two_modes, ["two-modes"]),
    "banana.png": (draw_banana, ["banana-mala", "banana-nuts"]),
    "network.png": (draw_network, ["network"]),
    "eight-schools.png": (draw_schools, ["eight-schools"]),
}
REPORT = "report.html"


def run_demo(folder: Path, *, quick: bool = False, seed: int = 0) -> bool:
    """Sample everything, print the table; return whether nothing was interrupted."""
    from rich.console import Console

    console, progress = Console(highlight=False), Console(highlight=False, stderr=True)
    todo = parts(quick=quick)
    claim_folder(folder, [*(p.store for p in todo), *FIGURES, REPORT])
    table, runs, finished = new_table(console), {}, True
    for number, part in enumerate(todo, 1):
        kernel = type(part.kernel).__name__
        progress.print(f"[bold]{number}/{len(todo)}[/] {part.title} by {kernel}")
        how = {"draws": part.draws, "warmup": 1000, "seed": seed, "store": folder / part.store}
        try:
            run = sk.sample(part.target, part.kernel, **how)
        except KeyboardInterrupt:  # while compiling: there is no run yet
            if not runs:
                raise
            finished = False
            break
        runs[part.name] = run
        table.add_row(*row(part, run))
        finished = not run.sampler.attrs["interrupted"]
        if not finished:
            break
    console.print(table)
    # An interrupted demo shows what it has.
    ready = {name: run for name, run in runs.items() if run.posterior.sizes["draw"] > 1}
    say_verdicts(console, folder, [p for p in todo if p.name in ready])
    written = draw_figures(folder, ready)
    shown = next((p for p in reversed(todo) if p.name in ready), None)
    if shown is not None:
        report(ready[shown.name], folder / REPORT, target=shown.target)
    say_where(console, folder, written, [f"{name}.zarr" for name in runs])
    if shown is not None:
        text = f"Look at the report on {shown.title}:  {folder / REPORT}"
        console.print(text, style="bold", soft_wrap=True, markup=False)
    if not finished:
        console.print("Interrupted: a stored run goes on with sk.resume.", soft_wrap=True)
    return finished


def say_verdicts(console: "Console", folder: Path, done: Sequence[Part]) -> None:
    """Say which runs can be trusted, and how to learn what is wrong with the others."""
    verdicts = {part.name: diagnose(folder / part.store) for part in done}
    trusted = sum(verdict.ok for verdict in verdicts.values())
    lines = [f"Nothing speaks against {trusted} of {len(done)} runs."]
    for part in (p for p in done if not verdicts[p.name].ok):
        problems = [f.code for f in verdicts[part.name].findings if f.severity == "problem"]
        lines += [
            f"Do not trust {part.title} by {type(part.kernel).__name__}: {', '.join(problems)}",
            f"  samplekit diagnose {shlex.quote(str(folder / part.store))}",
        ]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


def draw_figures(folder: Path, runs: "Mapping[str, xr.DataTree]") -> list[str]:
    """Draw the figures whose runs there are; return their names."""
    written = [file for file, (_, needs) in FIGURES.items() if runs.keys() >= set(needs)]
    with styled():
        for file in written:
            draw, needs = FIGURES[file]
            draw(*(runs[name] for name in needs)).savefig(folder / file)
    return written


def say_where(
    console: "Console", folder: Path, figures: Sequence[str], stores: Sequence[str]
) -> None:
    """Say what was written, and how to open it."""
    for line in (
        f"Written to {folder}:",
        f"  figures  {', '.join(figures) or 'none'}",
        f"  runs     {', '.join(stores)}",
    ):
        console.print(line, soft_wrap=True, markup=False)


def new_table(console: "Console") -> "Table":
    """Return the empty summary table."""
    from rich import box
    from rich.table import Table

    ascii_only = not console.encoding.startswith("utf")
    table = Table(
        title="samplekit demo",
        caption="Draws of 4 chains; worst R-hat and ESS of all scalars. Compile: little when\n"
        "cached by an earlier run. Sample: warm-up and draws.",
        box=box.ASCII2 if ascii_only else box.SIMPLE_HEAD,
        caption_justify="left",
        title_justify="left",
        title_style="bold",
        padding=(0, 1, 0, 0),
    )
    for name in ("target", "kernel"):
        table.add_column(name, no_wrap=True)
    for name in ("draws", "R-hat", "ESS\nbulk", "ESS\ntail", "compile\n(s)", "sample\n(s)"):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def row(part: Part, run: "xr.DataTree") -> list[str]:
    """Return one line of the table."""
    draws = {str(name): array.values for name, array in run.posterior.data_vars.items()}
    worst = summarize(draws)
    seconds = json.loads(run.sampler.attrs["seconds"])
    color = "green" if worst.rhat < 1.01 else "yellow" if worst.rhat < 1.05 else "red"
    sizes = run.posterior.sizes
    return [
        part.title,
        type(part.kernel).__name__,
        f"{sizes['chain'] * sizes['draw']:,}",
        f"[{color}]{worst.rhat:.3f}[/]",
        f"{worst.ess_bulk:,.0f}",
        f"{worst.ess_tail:,.0f}",
        f"{seconds.get('compiling', 0.0):.2f}",
        f"{seconds.get('warm-up', 0.0) + seconds.get('sampling', 0.0):.2f}",
    ]
