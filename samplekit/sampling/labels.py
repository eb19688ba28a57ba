"""Names of what a run shows: variables, dimensions, coordinates, observed data."""

import dataclasses
from typing import Any

import jax
import numpy as np

from samplekit.core.errors import TargetError
from samplekit.sampling.store import Variable


@dataclasses.dataclass(frozen=True)
class Labels:
    """How the arrays of a run are named."""

    variables: dict[str, Variable]
    coords: dict[str, Any]
    observed: dict[str, tuple[tuple[str, ...], np.ndarray]]


def label(target: Any, shapes: dict[str, jax.ShapeDtypeStruct]) -> Labels:
    """Name the variables that one draw shows, their dimensions and coordinates."""
    dims, coords = _given_labels(target)
    variables = {}
    for name, shape in shapes.items():
        own = dims.get(name)
        if own is None:
            stem = f"{name}_dim"
            many = len(shape.shape) > 1
            own = tuple(f"{stem}_{i}" if many else stem for i in range(len(shape.shape)))
        if len(own) != len(shape.shape):
            raise TargetError(
                f"dims= names {list(own)} for {name!r}, but one draw of it has shape "
                f"{list(shape.shape)}. Give one name per axis."
            )
        own = tuple(d.replace("/", ".") for d in own)  # '/' would mean a subgroup
        variables[name] = Variable(tuple(shape.shape), np.dtype(shape.dtype), own)
    sizes = _sizes(variables)
    coords = {dim.replace("/", "."): values for dim, values in coords.items()}
    for dim, values in coords.items():
        if dim in sizes and len(values) != sizes[dim]:
            raise TargetError(
                f"coords= gives {len(values)} values for {dim!r}, which has length {sizes[dim]}."
            )
    observed = _observed(target)
    for dims, values in observed.values():
        sizes = dict(zip(dims, values.shape, strict=True)) | sizes
    coords = {dim: coords.get(dim, range(size)) for dim, size in sizes.items()}
    return Labels(variables, coords, observed)


def _given_labels(target: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    if callable(getattr(target, "dims", None)):
        more = target.observed_coords() if hasattr(target, "observed_coords") else {}
        return dict(target.dims()), {**more, **target.coords()}
    space = target.space
    return {leaf.name: leaf.dims for leaf in space.leaves}, dict(space.coords)


def _sizes(variables: dict[str, Variable]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, variable in variables.items():
        for dim, size in zip(variable.dims, variable.shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise TargetError(
                    f"The dimension {dim!r} has length {sizes[dim]} in one variable and {size} in "
                    f"{name!r}. Give them different names in dims=."
                )
    return sizes


def _observed(target: Any) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    if not hasattr(target, "observed"):
        return {}
    dims = target.observed_dims()
    return {
        name: (tuple(d.replace("/", ".") for d in dims[name]), np.asarray(values))
        for name, values in target.observed().items()
    }
