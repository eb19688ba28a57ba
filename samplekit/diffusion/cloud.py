"""Where particles begin, and the DataTree they end in."""

import functools
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array

from samplekit.core.errors import TargetError
from samplekit.core.protocols import Numbers
from samplekit.diffusion.processes import Process
from samplekit.diffusion.scores import Problem, denoise_program, flat_rows, scale_rows
from samplekit.sampling.labels import label
from samplekit.sampling.run import Block, build_tree, group_attrs
from samplekit.sampling.settings import make_settings
from samplekit.sampling.view import SpacedScore

if TYPE_CHECKING:
    import xarray as xr


def begin(problem: Problem, start: Any, particles: int, key: Array) -> Array:
    """Return where the particles are at t_max, as rows of numbers."""
    dtype = problem.dtype
    if start is None:
        shape, t_max = (particles, problem.space.size), np.asarray(problem.t_max, dtype)
        return _from_prior(problem.process, shape, t_max, key)
    if callable(start):
        start = start(key, particles)
    return flat_rows(problem.space, start, dtype)


@functools.partial(jax.jit, static_argnums=1)
def _from_prior(process: Process, shape: tuple[int, int], t: Numbers, key: Array) -> Array:
    scale = process.prior_scale(t)
    return scale * jax.random.normal(key, shape, scale.dtype)


def as_tree(
    problem: Problem,
    rows: Array,
    *,
    denoise: bool,
    frames: Any,
    seconds: float,
    facts: dict[str, Any],
) -> "xr.DataTree":
    """Return the particles as data: x/a at t_min, or what Tweedie expects behind it.

    `frames`, (time, particle, size) or None, are shown as the process has them.
    """
    posterior = _named(problem, _data(problem, rows, denoise=denoise)[:, None])
    groups: dict[str, Block] = {"posterior": posterior}
    if frames is not None:
        groups["path_posterior"] = _named(problem, np.moveaxis(np.asarray(frames), 0, 1))
    facts = {"nonfinite_particles": _nonfinite(posterior), **facts}
    shapes = {k: jax.ShapeDtypeStruct(a.shape[2:], a.dtype) for k, a in posterior.items()}
    settings = make_settings(draws=1, warmup=0, chains=len(rows), thin=1, keep_warmup=False)
    described = {"process": repr(problem.process), "t_min": problem.t_min, "t_max": problem.t_max}
    return build_tree(
        groups,
        label(SpacedScore(problem.path, problem.space), shapes),
        sampler={},
        sampler_attrs=described,
        attrs=group_attrs({"sampling": seconds}, settings) | facts,
    )


def _data(problem: Problem, rows: Array, *, denoise: bool) -> np.ndarray:
    t = np.asarray(problem.t_min, rows.dtype)
    if denoise:
        return np.asarray(denoise_program(problem.path, problem.space, rows, t))
    return np.asarray(scale_rows(problem.process, rows, t, inward=False))


def _named(problem: Problem, rows: np.ndarray) -> Block:
    """Cut rows of numbers, with any axes in front, into named arrays."""
    sizes = [int(np.prod(leaf.shape, dtype=int)) for leaf in problem.space.leaves]
    parts = np.split(rows, np.cumsum(sizes)[:-1], axis=-1)
    return {
        leaf.name: part.reshape(*rows.shape[:-1], *leaf.shape)
        for leaf, part in zip(problem.space.leaves, parts, strict=True)
    }


def _nonfinite(values: Block) -> int:
    """Count the particles that are lost, and refuse to return nothing but those."""
    fine = np.all([np.isfinite(a.reshape(len(a), -1)).all(1) for a in values.values()], axis=0)
    if not fine.any():
        raise TargetError(
            f"None of the {len(fine)} particles ended at a finite place. Look at the score at "
            "t_max and t_min; steps that are too long for it do this as well: take more of them."
        )
    return int((~fine).sum())
