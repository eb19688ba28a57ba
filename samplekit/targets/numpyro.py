"""NumPyro models as targets: unconstrained inside, constrained and named in the run."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro import handlers
from numpyro.distributions.transforms import biject_to
from numpyro.infer.util import potential_energy

from samplekit.core.errors import TargetError
from samplekit.core.protocols import Position, Scalar
from samplekit.core.pytree import pytree, static
from samplekit.targets.numpyro_model import ModelCall, Site, learn, numpyro_rules, observed_values
from samplekit.targets.space import Coords, Leaf, Space

type Values = Mapping[str, Any]


@pytree
class NumpyroTarget:
    """The posterior of a NumPyro model; positions are dicts of unconstrained arrays."""

    call: ModelCall = static()
    sites: tuple[Site, ...] = static()
    space: Space = static()

    def __repr__(self) -> str:
        """Show the model and the latent sites."""
        latent = ", ".join(s.name + (str(list(s.shape)) if s.shape else "") for s in self._latent)
        return f"NumpyroTarget({self.call.name}: {latent})"

    @property
    def _latent(self) -> tuple[Site, ...]:
        return tuple(s for s in self.sites if s.kind == "latent")

    @property
    def variables(self) -> tuple[Site, ...]:
        """The variables of a run: latent sites in the model's order, then deterministic ones."""
        return self._latent + tuple(s for s in self.sites if s.kind == "deterministic")

    def log_density(self, x: Position, /) -> Scalar:
        """Return log p at the unconstrained position `x`, Jacobian included."""
        with numpyro_rules():
            call = self.call
            return -jnp.asarray(potential_energy(call.prepared, call.args, call.kwargs, x))

    def score(self, x: Position, /) -> Position:
        """Return ∇ log p, the Stein score (not scikit-learn's `score`)."""
        return jax.grad(self.log_density)(x)

    def constrain(self, x: Position, /) -> dict[str, Array]:
        """Return the values that a run shows: latent sites, then deterministic ones."""
        with numpyro_rules():
            trace = self._trace_at(x)
            return {s.name: jnp.asarray(trace[s.name]["value"]) for s in self.variables}

    def log_jacobian(self, x: Position, /) -> Scalar:
        """Return log|J| of the map from `x` to the constrained value, a part of `log_density`."""
        with numpyro_rules():
            sites = {name: site for name, site in self._trace_at(x).items() if name in x}
            maps = {name: biject_to(site["fn"].support) for name, site in sites.items()}
            parts = [
                jnp.sum(maps[name].log_abs_det_jacobian(x[name], site["value"]))
                for name, site in sites.items()
            ]
            return jnp.asarray(sum(parts))

    def _trace_at(self, x: Position) -> dict[str, Any]:
        def value_of(site: Any) -> Any:
            if site["type"] == "sample" and site["name"] in x:
                return biject_to(site["fn"].support)(x[site["name"]])
            return None

        return self.call.trace(functools.partial(handlers.substitute, substitute_fn=value_of))

    def unconstrain(self, values: Values, /) -> dict[str, Array]:
        """Return the unconstrained position of constrained values, one for each latent site.

        Values of deterministic sites are allowed and have no effect.
        """
        shapes = {s.name: s.shape for s in self._latent}
        missing = [name for name in shapes if name not in values]
        unknown = sorted(set(values) - {s.name for s in self.variables})
        if missing or unknown:
            raise TargetError(
                f"The values given for {self.call.name} "
                + " and ".join(
                    f"{what} {', '.join(map(repr, names))}"
                    for what, names in (("miss", missing), ("have the unknown", unknown))
                    if names
                )
                + f". Give a value for each latent site: {', '.join(shapes)}."
            )
        for name, shape in shapes.items():
            if np.shape(values[name]) != shape:
                raise TargetError(
                    f"The value given for {name!r} has shape {np.shape(values[name])}, but the "
                    f"site has {shape}. Give constrained values, shaped as the model draws them."
                )
        dtype = jnp.result_type(float)
        latent = {n: jnp.asarray(values[n]) for n in sorted(shapes)}
        latent = {
            n: v if jnp.issubdtype(v.dtype, jnp.floating) else v.astype(dtype)
            for n, v in latent.items()
        }
        with numpyro_rules():
            trace = self.call.trace(functools.partial(handlers.substitute, data=latent))
            return {n: biject_to(trace[n]["fn"].support).inv(v) for n, v in latent.items()}

    def dims(self) -> dict[str, tuple[str, ...]]:
        """Return the dimension names of every variable that `constrain` returns."""
        return {s.name: s.dims for s in self.variables}

    def coords(self) -> dict[str, tuple[Any, ...]]:
        """Return the coordinates of every dimension in `dims`."""
        return self._coords_of(self.variables)

    def observed(self) -> dict[str, np.ndarray]:
        """Return the data of the model's observed sites, evaluated once."""
        names = [s.name for s in self.sites if s.kind == "observed"]
        return observed_values(self.call, names)

    def observed_dims(self) -> dict[str, tuple[str, ...]]:
        """Return the dimension names of every array in `observed`."""
        return {s.name: s.dims for s in self.sites if s.name in self.observed()}

    def observed_coords(self) -> dict[str, tuple[Any, ...]]:
        """Return the coordinates of every dimension in `observed_dims`."""
        return self._coords_of([s for s in self.sites if s.name in self.observed()])

    def _coords_of(self, sites: Sequence[Site]) -> dict[str, tuple[Any, ...]]:
        sizes = {d: n for s in sites for d, n in zip(s.dims, s.shape, strict=True)}
        given = dict(self.space.coords)
        return {d: given.get(d) or tuple(range(n)) for d, n in sizes.items()}

    def labeled(
        self, dims: Mapping[str, Sequence[str]] | None = None, coords: Coords = None
    ) -> "NumpyroTarget":
        """Return the target with other dimension names and coordinates, as in ArviZ.

        Plates label themselves: their name is the dimension, their range the coordinates.

        Examples
        --------
        >>> import numpyro, numpyro.distributions as dist, samplekit as sk
        >>> def model():
        ...     numpyro.sample("beta", dist.Normal().expand([2]).to_event(1))
        >>> target = sk.from_numpyro(model)
        >>> target.labeled(dims={"beta": ["term"]}, coords={"term": ["age", "sex"]}).coords()
        {'term': ('age', 'sex')}
        """
        given = {n: (d,) if isinstance(d, str) else tuple(d) for n, d in (dims or {}).items()}
        known = {s.name: s for s in self.sites if s.kind != "factor"}
        for name, labels in given.items():
            if name not in known or len(labels) != len(known[name].shape):
                shape = f"has shape {known[name].shape}" if name in known else "is no site"
                raise TargetError(
                    f"dims names {name!r} {labels}, which {shape} of {self.call.name}. "
                    f"Give one name per axis; the sites are {', '.join(known)}."
                )
        sites = tuple(
            dataclasses.replace(s, dims=given[s.name]) if s.name in given else s for s in self.sites
        )
        sizes = {(d, n) for s in sites for d, n in zip(s.dims, s.shape, strict=False)}
        frozen = {d: tuple(np.asarray(v).tolist()) for d, v in (coords or {}).items()}
        for dim, labels in frozen.items():
            if {n for d, n in sizes if d == dim} != {len(labels)}:
                raise TargetError(
                    f"coords gives {len(labels)} labels for {dim!r}, but the dimensions are "
                    f"{dict(sorted(sizes))}. Give one label per entry of a dimension."
                )
        merged = tuple({**dict(self.space.coords), **frozen}.items())
        return NumpyroTarget(self.call, sites, _space(sites, merged))


def from_numpyro(model: Callable[..., Any], *args: Any, **kwargs: Any) -> NumpyroTarget:
    """Return the posterior of a NumPyro model as a target.

    Kernels move unconstrained values; the run shows constrained ones under the sites' names,
    deterministic sites too. Plates name dimensions (`NumpyroTarget.labeled` renames them).

    Parameters
    ----------
    model
        A function with `numpyro.sample` statements; latent sites must be continuous.
        `numpyro.param` sites stay at their initial value, as in NumPyro's own samplers.
    args, kwargs
        The model's arguments: all of them, data included. They are part of the compiled
        program; calls with the same model and equal data share it.

    Examples
    --------
    >>> import numpy as np, numpyro, numpyro.distributions as dist, samplekit as sk
    >>> def model(y):
    ...     scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    ...     with numpyro.plate("day", len(y)):
    ...         numpyro.sample("y", dist.Normal(0.0, scale), obs=y)
    >>> target = sk.from_numpyro(model, np.array([0.3, -1.2]))
    >>> target
    NumpyroTarget(model: scale)
    >>> target.observed_dims()
    {'y': ('day',)}
    """
    call = ModelCall.of(model, args, kwargs)
    sites = learn(call)
    return NumpyroTarget(call, sites, _space(sites))


def _space(sites: Sequence[Site], coords: tuple[tuple[str, tuple[Any, ...]], ...] = ()) -> Space:
    latent = sorted((s for s in sites if s.kind == "latent"), key=lambda s: s.name)
    leaves = tuple(Leaf(s.name, s.unconstrained, s.dims) for s in latent)
    return Space(jax.tree.structure({s.name: 0 for s in latent}), leaves, coords)
