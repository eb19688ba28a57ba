"""What a fitted NumPyro model says about data: log likelihood, predictions, prior draws."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import Array
from numpyro import handlers
from numpyro.distributions import Independent

from samplekit.core.errors import TargetError
from samplekit.sampling.run import safe_name
from samplekit.targets.numpyro import NumpyroTarget
from samplekit.targets.numpyro_model import Site, numpyro_rules

type Values = Mapping[str, Any]
type Task = Callable[[NumpyroTarget, Array, Values], dict[str, Array]]

GROUPS: tuple[str, ...] = ("log_likelihood", "posterior_predictive", "prior", "prior_predictive")
PRIOR_DRAWS = 500  # ArviZ's and PyMC's habit: enough for a density plot
CHUNK_BYTES = 2**25  # of results at a time; intermediates are a small multiple
LOOP_BYTES = 2**16  # results of one draw; beyond it, batched products outweigh the compiler


def predictive(
    run: xr.DataTree,
    target: NumpyroTarget,
    *,
    groups: Sequence[str] | None = None,
    draws: int | None = None,
    seed: int | Array = 0,
) -> xr.DataTree:
    """Return the run with what its draws say about the data, for `az.loo` and predictive checks.

    Parameters
    ----------
    run
        A run of `target`; only its `posterior` is read, and it is not changed.
    target
        The target that the run came from, made by `from_numpyro`.
    groups
        Some of `log_likelihood`, `posterior_predictive`, `prior` and `prior_predictive`. None
        adds those that the model allows and says in the attribute `predictive_skipped` which
        are left out: a flat prior has no draws, and a model whose data enter by
        `numpyro.factor` alone has no observed site.
    draws
        Number of draws from the prior, 500 if None. The posterior groups use every draw.
    seed
        An int or a JAX key.

    Notes
    -----
    The log likelihood is pointwise: one number per observation, or per event where the model
    declares events (`to_event`, a multivariate distribution). Only where a whole site is one
    event of independent components is it split into them, since `az.loo` needs several.
    As NumPyro does, prior draws pass over `numpyro.factor`, and inside
    `numpyro.contrib.control_flow.scan` predictions follow one step from the observed past.

    Examples
    --------
    >>> import numpy as np, numpyro, numpyro.distributions as dist, samplekit as sk, xarray as xr
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    ...     with numpyro.plate("day", len(y)):
    ...         numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> target = sk.from_numpyro(model, np.array([0.3, -1.2]))
    >>> posterior = xr.Dataset({"mu": (("chain", "draw"), np.zeros((1, 3)))})
    >>> run = xr.DataTree.from_dict({"posterior": posterior})
    >>> sk.predictive(run, target)["log_likelihood"]["y"].dims
    ('chain', 'draw', 'day')
    """
    if not isinstance(target, NumpyroTarget):
        raise TargetError(
            f"The target is a {type(target).__name__}, and only a NumPyro model says how data "
            "arise from its parameters. Give the target made by sk.from_numpyro."
        )
    wanted = _check_groups(groups)
    key = jax.random.key(seed) if isinstance(seed, int | np.integer) else seed
    count = PRIOR_DRAWS if draws is None else draws
    if count < 1:
        raise TargetError(f"draws={draws!r} asks for no draw from the prior. Give a number ≥ 1.")
    skipped = _impossible(target, wanted)
    if groups is not None and (refused := [g for g in wanted if g in skipped]):
        raise TargetError(
            f"{target.call.name} has no group {refused[0]!r}: {skipped[refused[0]]}. Leave it out, "
            "or leave groups out to get all that the model allows."
        )
    keys = dict(zip(GROUPS, jax.random.split(key, len(GROUPS)), strict=True))
    wanted = [g for g in wanted if g not in skipped]
    made: dict[str, xr.Dataset] = {}
    if {"log_likelihood", "posterior_predictive"} & set(wanted):
        made |= _from_posterior(run, target, wanted, keys["posterior_predictive"])
    if {"prior", "prior_predictive"} & set(wanted):
        made |= _from_prior(target, count, keys["prior"])
    if target.observed() and "observed_data" not in run.children:
        data = target.observed()
        made["observed_data"] = _dataset(target, data, {}, target.observed_dims(), lead=())
    tree = run.copy()
    for name, dataset in made.items():
        if name in wanted or name == "observed_data":
            tree[name] = xr.DataTree(dataset)
    if groups is None and skipped:
        tree.attrs["predictive_skipped"] = "; ".join(f"{g}: {why}" for g, why in skipped.items())
    return tree


def _check_groups(groups: Sequence[str] | None) -> list[str]:
    wanted = list(GROUPS) if groups is None else [groups] if isinstance(groups, str) else [*groups]
    unknown = [g for g in wanted if g not in GROUPS]
    if unknown:
        raise TargetError(
            f"groups asks for {', '.join(map(repr, unknown))}, which predictive does not make. "
            f"Choose from {', '.join(GROUPS)}."
        )
    return wanted


def _impossible(target: NumpyroTarget, wanted: Sequence[str]) -> dict[str, str]:
    """Return the wanted groups that the model cannot have, each with the reason."""
    skipped = {}
    if not target.observed():
        skipped = dict.fromkeys([g for g in wanted if g != "prior"], "no site is observed")
    prior = [g for g in wanted if g.startswith("prior")]
    try:
        if prior:
            key = jax.eval_shape(jax.random.key, 0)
            jax.eval_shape(functools.partial(_prior, target), key, {})
    except NotImplementedError:
        skipped |= dict.fromkeys(prior, "a prior is improper or has no sampler")
    return skipped


def _from_posterior(
    run: xr.DataTree, target: NumpyroTarget, wanted: Sequence[str], key: Array
) -> dict[str, xr.Dataset]:
    values, coords, shape = _latent(run, target)
    tasks = {"log_likelihood": _log_likelihood, "posterior_predictive": _predict}
    return {
        group: _dataset(
            target,
            {n: a.reshape(shape + a.shape[1:]) for n, a in _map(task, target, key, values).items()},
            coords,
            target.observed_dims(),
        )
        for group, task in tasks.items()
        if group in wanted
    }


def _from_prior(target: NumpyroTarget, count: int, key: Array) -> dict[str, xr.Dataset]:
    values = {n: a[None] for n, a in _map(_prior, target, key, {}, count=count).items()}
    coords = {"chain": np.arange(1), "draw": np.arange(count)}
    parts = {"prior": target.dims(), "prior_predictive": target.observed_dims()}
    return {
        group: _dataset(target, {n: values[n] for n in dims}, coords, dims)
        for group, dims in parts.items()
    }


def _log_likelihood(target: NumpyroTarget, key: Array, values: Values) -> dict[str, Array]:
    """Return the log likelihood of each observation at one draw."""
    del key
    with numpyro_rules():
        trace = target.call.trace(functools.partial(handlers.substitute, data=dict(values)))
        result = {}
        for name in target.observed():
            fn, value = trace[name]["fn"], trace[name]["value"]
            log_prob = fn.log_prob(value)
            while log_prob.ndim == 0 and isinstance(fn, Independent):
                fn = fn.base_dist
                log_prob = fn.log_prob(value)
            result[name] = log_prob
    return result


def _predict(target: NumpyroTarget, key: Array, values: Values) -> dict[str, Array]:
    """Return new data from the model at one draw, whatever data it was given."""
    with numpyro_rules():
        trace = target.call.trace(
            handlers.uncondition,
            functools.partial(handlers.substitute, data=dict(values)),
            functools.partial(handlers.seed, rng_seed=key),
        )
        return {n: jnp.asarray(trace[n]["value"]) for n in target.observed()}


def _prior(target: NumpyroTarget, key: Array, values: Values) -> dict[str, Array]:
    """Return every variable and new data from one draw of the prior."""
    del values
    with numpyro_rules():
        trace = target.call.trace(
            handlers.uncondition, functools.partial(handlers.seed, rng_seed=key)
        )
        names = [s.name for s in target.variables] + list(target.observed())
        return {n: jnp.asarray(trace[n]["value"]) for n in names}


@functools.partial(jax.jit, static_argnums=0)
def _batch(
    how: tuple[Task, bool], target: NumpyroTarget, key: Array, batch: tuple[Array, Values]
) -> dict[str, Array]:
    """Run the task on a batch of draws; a draw's key depends on its number alone."""
    task, one_by_one = how

    def one(each: tuple[Array, Values]) -> dict[str, Array]:
        index, values = each
        return task(target, jax.random.fold_in(key, index), values)

    return jax.lax.map(one, batch) if one_by_one else jax.vmap(one)(batch)


def _map(
    task: Task, target: NumpyroTarget, key: Array, values: Values, *, count: int | None = None
) -> dict[str, np.ndarray]:
    """Run the task on all draws, so many at a time that the memory stays bounded."""
    total = count if count is not None else len(next(iter(values.values())))
    one = jax.eval_shape(
        lambda k, v: task(target, k, v), key, {n: jnp.asarray(a[0]) for n, a in values.items()}
    )
    width = sum(a.size * a.dtype.itemsize for a in one.values())
    # Random numbers under vmap take XLA's CPU compiler four times as long as in a loop.
    loop = task is not _log_likelihood and width < LOOP_BYTES and jax.default_backend() == "cpu"
    size = min(total, max(1, CHUNK_BYTES // max(width, 1)))
    out = {n: np.empty((total, *a.shape), a.dtype) for n, a in one.items()}
    for start in range(0, total, size):
        # The last chunk looks back, so that all have one size and compile once.
        start = min(start, total - size)
        part = slice(start, start + size)
        batch = np.arange(start, start + size), {n: a[part] for n, a in values.items()}
        for name, array in _batch((task, loop), target, key, batch).items():
            out[name][part] = array
    return out


def _latent(
    run: xr.DataTree, target: NumpyroTarget
) -> tuple[dict[str, np.ndarray], dict[str, Any], tuple[int, int]]:
    """Return the latent values of all draws, chains one after the other."""
    if "posterior" not in run.children:
        raise TargetError(
            "The run has no group 'posterior', so there are no draws to predict from. Give what "
            "sk.sample returns."
        )
    posterior = run["posterior"].to_dataset().transpose("chain", "draw", ...)
    sites: list[Site] = [s for s in target.sites if s.kind == "latent"]
    shapes = {n: tuple(posterior[n].shape[2:]) for n in posterior.data_vars}
    wrong = [s.name for s in sites if shapes.get(safe_name(s.name)) != s.shape]
    if wrong:
        raise TargetError(
            f"The run is not of this target: its posterior lacks {', '.join(wrong)}, or has other "
            f"shapes; it holds {shapes}. Give the target that the run was sampled from."
        )
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    values = {s.name: posterior[safe_name(s.name)].values.reshape(-1, *s.shape) for s in sites}
    coords = {d: posterior.coords[d] for d in ("chain", "draw") if d in posterior.coords}
    return values, coords, shape


def _dataset(
    target: NumpyroTarget,
    values: Values,
    coords: Mapping[str, Any],
    dims: Mapping[str, Any],
    *,
    lead: tuple[str, ...] = ("chain", "draw"),
) -> xr.Dataset:
    """Label arrays; those with fewer axes than their variable have lost the last ones."""
    labels = target.coords() | target.observed_coords()
    variables = {}
    for name, array in values.items():
        axes = array.shape[len(lead) :]
        named = tuple(dims[name])[: len(axes)]
        if [len(labels[d]) for d in named] != list(axes):
            named = tuple(f"{safe_name(name)}_dim_{i}" for i in range(len(axes)))
        variables[safe_name(name)] = (lead + named, array)
    used = {d for named, _ in variables.values() for d in named}
    kept = {d: list(labels[d]) for d in labels if d in used}
    return xr.Dataset(variables, coords={**kept, **coords})
