"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

# Typer writes <bool> behind every flag; a flag takes nothing.
FLAG: Any = {"metavar": ""}
DEFAULT_STORE = "run.zarr"


def complete_kernel(incomplete: str) -> list[str]:
    """Offer the kernels whose names begin so."""
    from samplekit.cli.kernels import kernel_names

    return [n for n in map(str.lower, kernel_names()) if n.startswith(incomplete.lower())]


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="What to sample: model.py:name, package.module:name or zoo:banana. The name is that "
        "of a target, of a function that returns one, or of a NumPyro model; a file with one "
        "obvious target needs none.",
    ),
]
Run = Annotated[
    Path, typer.Argument(metavar="RUN", help="A stored run: a Zarr folder or a netCDF file.")
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="MODEL",
        help="What was sampled, as for samplekit sample: unadjusted kernels and learned scores "
        "are then checked against it.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="Arguments of the model: a JSON object (its lists become arrays) or an .npz file.",
    ),
]
KernelName = Annotated[
    str | None,
    typer.Option(
        "--kernel",
        "-k",
        metavar="NAME",
        help="Such as nuts, hmc, mala; or one of your own, model.py:kernel. Without it, HMC for "
        "a density and ScoreMALA for a score.",
        autocompletion=complete_kernel,
    ),
]
KernelSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="An option of the kernel, such as step_size=0.1 or metric=dense; may be repeated.",
    ),
]
Chains = Annotated[int, typer.Option("--chains", "-c", metavar="N", min=1, help="Chains.")]
Draws = Annotated[
    int,
    typer.Option(
        "--draws", "-n", metavar="N", min=1, help="Draws of each chain; --until-... may need less."
    ),
]
MoreDraws = Annotated[
    int | None,
    typer.Option(
        "--draws", "-n", metavar="N", min=1, help="Add so many draws; without it, finish the run."
    ),
]
Warmup = Annotated[
    int, typer.Option("--warmup", "-w", metavar="N", min=0, help="Warm-up steps of each chain.")
]
Thin = Annotated[
    int, typer.Option("--thin", metavar="N", min=1, help="Steps for each stored draw.")
]
Seed = Annotated[
    int, typer.Option("--seed", metavar="N", help="The same seed gives the same draws.")
]
UntilRhat = Annotated[
    float | None,
    typer.Option(
        "--until-rhat", metavar="N", help="Stop once every R-hat is below this, such as 1.01."
    ),
]
UntilEss = Annotated[
    float | None,
    typer.Option(
        "--until-ess",
        metavar="N",
        help="Stop once every effective sample size is this, such as 400.",
    ),
]
KeepWarmup = Annotated[
    bool, typer.Option("--keep-warmup", help="Store the warm-up as well.", **FLAG)
]
Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        "-s",
        help="New Zarr folder of the run.",
        show_default=f"{DEFAULT_STORE}, run-2.zarr, ...",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE.nc", help="Write a netCDF copy as well."),
]
Distributed = Annotated[
    bool,
    typer.Option(
        "--distributed",
        help="Share the run with the other processes that SLURM, Kubernetes, Open MPI or samplekit "
        "launch started.",
        **FLAG,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.", **FLAG)]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress, no table, no hints.", **FLAG)
]
