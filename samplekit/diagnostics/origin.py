"""Who made a run: its kernel, as far as the attributes of the run tell."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

_HAMILTONIAN = {"NUTS", "HMC"}
_ENSEMBLES = {"emcee", "zeus"}

# Arrays and decoded attributes of the group `sampler` that our runs carry.
type Checkpoint = tuple[dict[str, np.ndarray], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Sampler:
    """What a run says of its sampler; None where it does not say.

    Attributes
    ----------
    name
        Class of the kernel, such as "NUTS" or "Langevin".
    library
        Library that made the run: "samplekit", "pymc", "numpyro", "cmdstanpy", "emcee".
    adjusted
        Whether the target itself is invariant, whatever the step size.
    hamiltonian
        Whether draws carry a momentum that is drawn anew, so that E-BFMI means something.
    ensemble
        Whether the chains are walkers of one ensemble, which move by looking at each other.
    target_accept
        The acceptance rate that warm-up aimed for.
    step_size
        Median step size of the draws.
    settings
        Other settings, as far as they are known.
    """

    name: str | None = None
    library: str | None = None
    adjusted: bool | None = None
    hamiltonian: bool = False
    ensemble: bool = False
    target_accept: float | None = None
    step_size: float | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)


def read_checkpoint(tree: "xr.DataTree") -> Checkpoint:
    """Return arrays and attributes of our own sampler; empty for runs of others."""
    if "sampler" not in tree.children:
        return {}, {}
    from samplekit.sampling.run import sampler_state

    try:
        return sampler_state(tree)
    except Exception:  # a group of that name, but not ours
        return {}, {}


def read_sampler(
    tree: "xr.DataTree",
    stats: dict[str, np.ndarray],
    checkpoint: Checkpoint,
) -> Sampler:
    """Tell what is known of the sampler from attributes, and from which statistics there are."""
    attrs: dict[Any, Any] = {**tree.attrs, **tree["posterior"].attrs}
    if "sample_stats" in tree.children:
        attrs |= tree["sample_stats"].attrs
    library = str(attrs["inference_library"]) if "inference_library" in attrs else None
    kernel = checkpoint[1].get("kernel") or {}
    if isinstance(kernel, dict) and "name" in kernel:
        name, settings = str(kernel["name"]), dict(kernel.get("settings") or {})
        adjusted = bool(kernel.get("exact", True))
        target_accept = _goal(checkpoint[1])
    else:
        tree_built = "tree_depth" in stats or "reached_max_treedepth" in stats
        name = "NUTS" if tree_built else None
        settings, adjusted, target_accept = {}, None, None
    steps = stats.get("step_size")
    known = steps is not None and steps.size and np.isfinite(steps).all()
    return Sampler(
        name=name,
        library=library,
        adjusted=adjusted,
        hamiltonian=name in _HAMILTONIAN or (not kernel and "energy" in stats),
        ensemble=library in _ENSEMBLES,
        target_accept=target_accept,
        step_size=float(np.median(steps)) if known and steps is not None else None,
        settings=settings,
    )


def _goal(attrs: dict[str, Any]) -> float | None:
    """Return the acceptance rate that warm-up aimed for, if it tuned the step at all."""
    goal = attrs.get("goal")
    return None if goal is None else float(goal)


def read_seconds(tree: "xr.DataTree", checkpoint: Checkpoint) -> float | None:
    """Return the wall time of the draws."""
    seconds = checkpoint[1].get("seconds")
    if isinstance(seconds, dict) and seconds.get("sampling"):
        return float(seconds["sampling"])
    places = [tree[g].attrs for g in ("posterior", "sample_stats") if g in tree.children]
    for attrs in [*places, tree.attrs]:
        if attrs.get("sampling_time"):
            return float(attrs["sampling_time"])
    return None
