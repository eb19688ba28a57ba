"""A call of a NumPyro model: its identity, and what one abstract trace tells about it."""

import contextlib
import dataclasses
import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpyro import handlers
from numpyro.distributions import MaskedDistribution
from numpyro.distributions.transforms import biject_to
from numpyro.primitives import Messenger

from samplekit.core.errors import TargetError
from samplekit.core.pytree import is_array
from samplekit.targets.numpyro_import import mend_numpyro

mend_numpyro()

type Trace = dict[str, Any]

_STACK = threading.RLock()


class _DefaultKey(Messenger):
    """Give fixed keys to what asks for one outside any `seed`: parameters' initial values.

    As the outermost handler it costs nothing where nothing asks.
    """

    asked = 0

    def process_message(self, msg: Any) -> None:
        asks = msg["type"] in {"prng_key", "plate"} and msg["value"] is None
        if asks and msg["kwargs"]["rng_key"] is None:
            msg["kwargs"]["rng_key"] = jax.random.key(self.asked)
            self.asked += 1


@contextlib.contextmanager
def numpyro_rules() -> Iterator[None]:
    """Run NumPyro as it expects to be run; to be held while a model is called or traced.

    Its handlers live in one global stack, so threads take turns; its distributions promote
    ranks and dtypes, whatever the user has set for their own code.
    """
    allow, standard = jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard")
    with _STACK, allow, standard, _DefaultKey():
        yield


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ModelCall:
    """A model with its arguments, equal to another when model and data are.

    Equal calls share one compiled program, so arrays are copied: a later change in place of the
    user's array would otherwise go unseen.
    """

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    digest: int
    memo: dict[str, Any] = dataclasses.field(default_factory=dict)  # follows from the others

    @classmethod
    def of(cls, model: Callable[..., Any], args: Any, kwargs: Any) -> "ModelCall":
        """Copy the data and hash them cheaply: shapes and scalars, not contents."""
        copy = lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf  # noqa: E731
        args, kwargs = jax.tree.map(copy, (tuple(args), dict(kwargs)))
        leaves = jax.tree.leaves((args, kwargs))
        identity = model if isinstance(model, types.MethodType) else id(model)
        return cls(model, args, kwargs, hash((identity, *map(_fingerprint, leaves))))

    def __hash__(self) -> int:
        """Hash by model, shapes and scalars."""
        return self.digest

    def __eq__(self, other: object) -> bool:
        """Compare the model by identity and the data by value."""
        if self is other:
            return True
        if not isinstance(other, ModelCall) or self.digest != other.digest:
            return False
        method = isinstance(self.model, types.MethodType) and self.model == other.model
        ours, structure = jax.tree.flatten((self.args, self.kwargs))
        theirs, other_structure = jax.tree.flatten((other.args, other.kwargs))
        return (
            (self.model is other.model or method)
            and structure == other_structure
            and all(map(_same, ours, theirs))
        )

    def __repr__(self) -> str:
        """Show the model's name, not its data."""
        return f"{self.name}({', '.join([*['…'] * len(self.args), *self.kwargs])})"

    @property
    def name(self) -> str:
        """The model's name."""
        return getattr(self.model, "__name__", type(self.model).__name__)

    @property
    def prepared(self) -> Callable[..., Any]:
        """The model with its `numpyro.param` sites held at their initial values."""
        fixed = self.memo.get("fixed")
        return handlers.substitute(self.model, data=fixed) if fixed else self.model

    def trace(self, *handle: Callable[[Callable[..., Any]], Any]) -> dict[str, Any]:
        """Call the model inside the handlers, the first innermost, and return its sites."""
        model = self.prepared
        for handler in handle:
            model = handler(model)
        return handlers.trace(model).get_trace(*self.args, **self.kwargs)


@dataclasses.dataclass(frozen=True)
class Site:
    """What a run needs to know of one site of a model."""

    name: str
    kind: str  # "latent", "deterministic", "observed" or "factor"
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    unconstrained: tuple[int, ...] = ()


def learn(call: ModelCall) -> tuple[Site, ...]:
    """Return the sites of a model from one abstract trace, or say why it cannot be sampled.

    Nothing is compiled or computed, save the values of `numpyro.param` sites where there are any.
    """
    found: list[Site] = []
    fixed: list[str] = []

    def run() -> None:
        trace = call.trace(functools.partial(_filled, 0.5))
        _check_trace(call, trace)
        sizes: dict[str, int] = {}
        found.extend(site for s in trace.values() if (site := _site(call, s, sizes)) is not None)
        fixed.extend(n for n, s in trace.items() if s["type"] in {"param", "mutable"})

    try:
        with numpyro_rules():
            jax.eval_shape(run)
    except TargetError:
        raise
    except Exception as error:
        raise TargetError(_why_it_failed(call, error)) from error
    if fixed:
        call.memo["fixed"] = _evaluate(call, fixed, 0.5)
    if not any(s.kind == "latent" for s in found):
        raise TargetError(
            f"The model {call} has no latent site: there is nothing to sample. Leave obs= out, or "
            "pass None for it, at the numpyro.sample statements whose values are unknown."
        )
    _check_data(call, found)
    return tuple(found)


def observed_values(call: ModelCall, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the data at the observed sites, computed by one small program if need be."""
    known: dict[str, np.ndarray] = call.memo.setdefault("observed", {})
    missing = [n for n in names if n not in known and n not in call.memo["computed"]]
    if missing:
        low, high = (_evaluate(call, missing, level) for level in (0.25, 0.75))
        for name in missing:
            # A value that follows the latent ones is no data: a residual, a reparametrised site.
            if np.array_equal(low[name], high[name], equal_nan=low[name].dtype.kind == "f"):
                known[name] = low[name]
            else:
                call.memo["computed"].add(name)
        _refuse_nan(call, missing)
    return {n: known[n] for n in names if n in known}


def _evaluate(call: ModelCall, names: Sequence[str], level: float) -> dict[str, Any]:
    """Return the values at some sites when every latent one is `level`."""
    if "evaluate" not in call.memo:

        @functools.partial(jax.jit, static_argnums=0)
        def evaluate(wanted: tuple[str, ...], level: jax.Array) -> dict[str, Any]:
            with numpyro_rules():
                trace = call.trace(functools.partial(_filled, level))
            return {n: trace[n]["value"] for n in wanted}

        call.memo["evaluate"] = evaluate
    with jax.ensure_compile_time_eval():
        return jax.device_get(call.memo["evaluate"](tuple(names), level))


def _filled(level: Any, model: Callable[..., Any]) -> Any:
    """Give every latent site a constant, which is cheaper to trace than a draw.

    Constants need not lie in the support: only shapes are looked at, or what does not depend
    on them.
    """

    def fill(site: Trace) -> Any:
        if site["type"] != "sample" or site["value"] is not None:
            return None
        shape = site["kwargs"]["sample_shape"] + tuple(site["fn"].shape())
        return jnp.full(shape, level, int if _is_discrete(site) else float)

    return handlers.substitute(model, substitute_fn=fill)


def _site(call: ModelCall, site: Trace, sizes: dict[str, int]) -> Site | None:
    """Describe one traced site; keep the data of an observed one if they are at hand."""
    if site["type"] not in {"sample", "deterministic"}:
        return None
    name, value = site["name"], site["value"]
    shape, frames = tuple(np.shape(value)), site.get("cond_indep_stack", [])
    if site["type"] == "deterministic":
        return Site(name, "deterministic", shape, _dims(name, shape, frames, sizes=sizes))
    if site["infer"].get("is_auxiliary"):
        return Site(name, "factor", (), ())
    event_dim = site["fn"].event_dim
    dims = _dims(name, shape, frames, sizes=sizes, event_dim=event_dim)
    if site["is_observed"]:
        if not isinstance(value, Tracer):
            call.memo.setdefault("observed", {})[name] = np.asarray(value)
        if any(isinstance(fn, MaskedDistribution) for fn in _layers(site["fn"])):
            call.memo.setdefault("masked", set()).add(name)
        return Site(name, "observed", shape, dims)
    try:
        unconstrained = tuple(biject_to(site["fn"].support).inverse_shape(shape))
    except NotImplementedError as error:
        raise TargetError(
            f"The latent site {name!r} lies on {site['fn'].support}, which no smooth map from the "
            "real numbers covers. Write it with unconstrained sites and numpyro.deterministic, or "
            "use numpyro.handlers.reparam (ProjectedNormalReparam for directions)."
        ) from error
    return Site(name, "latent", shape, dims, unconstrained)


def _dims(
    name: str,
    shape: tuple[int, ...],
    frames: Sequence[Any],
    *,
    sizes: dict[str, int],
    event_dim: int | None = None,
) -> tuple[str, ...]:
    """Name the axes of plates by the plate and the others `<name>_dim_<i>`."""

    def axes(event_dim: int) -> list[int]:
        places = [len(shape) - event_dim + frame.dim for frame in frames]
        fits = zip(places, frames, strict=True)
        return places if all(i >= 0 and shape[i] == frame.size for i, frame in fits) else []

    stem = name.replace("/", ".")  # from numpyro.handlers.scope; a DataTree's path has it as well
    dims = [f"{stem}_dim_{i}" for i in range(len(shape))]
    # A deterministic value does not say how many of its last axes lie inside the plates.
    tries = range(len(shape)) if event_dim is None else [event_dim]
    places = next((found for n in tries if (found := axes(n))), [])
    for place, frame in zip(places, frames, strict=False):
        label = frame.name.replace("/", ".")
        label = f"{label}_plate" if label in {"chain", "draw"} else label
        if sizes.setdefault(label, frame.size) == frame.size:
            dims[place] = label
    return tuple(dims)


def _check_trace(call: ModelCall, trace: Trace) -> None:
    latent = [s for s in trace.values() if s["type"] == "sample" and not s["is_observed"]]
    discrete = [repr(s["name"]) for s in latent if _is_discrete(s)]
    if discrete:
        raise TargetError(
            f"The model {call} has the discrete latent {_sites(discrete)}, and the kernels for "
            "densities need continuous ones. Sum it out: dist.MixtureSameFamily, or "
            "numpyro.factor with the jax.scipy.special.logsumexp over its values; or sample the "
            "model with NumPyro's DiscreteHMCGibbs."
        )
    plates = [s for s in trace.values() if s["type"] == "plate"]
    partial = [repr(s["name"]) for s in plates if s["args"][1] not in {None, s["args"][0]}]
    if partial:
        raise TargetError(
            f"The model {call} subsamples the {_sites(partial, 'plate')}: its density is that of "
            "a random part of the data. Leave subsample_size out, or use NumPyro's HMCECS or SVI."
        )
    imputed = [
        n
        for s in latent
        if s["name"].endswith("_unobserved")
        and (n := s["name"].removesuffix("_unobserved")) + "_observed" in trace
    ]
    if imputed:
        raise TargetError(
            f"The model {call} uses obs_mask= at {_sites([repr(n) for n in imputed])}, which "
            "leaves latent entries without any density where data are present. Sample only the "
            "missing entries as a latent site of their own and join them with the data."
        )


def _check_data(call: ModelCall, sites: Sequence[Site]) -> None:
    """Refuse missing data now; what the model computes is evaluated only if it may have them."""
    call.memo["computed"] = set()
    names = [s.name for s in sites if s.kind == "observed"]
    _refuse_nan(call, names)
    leaves = jax.tree.leaves((call.args, call.kwargs))
    if any(_nan(leaf).any() for leaf in leaves if isinstance(leaf, float) or is_array(leaf)):
        observed_values(call, names)


def _refuse_nan(call: ModelCall, names: Sequence[str]) -> None:
    for name in names:
        bad = _nan(call.memo.get("observed", {}).get(name, 0.0))
        # Data under a mask may be anything where they do not count.
        if bad.any() and name not in call.memo.get("masked", ()):
            first = tuple(int(i) for i in np.argwhere(bad)[0])
            raise TargetError(
                f"The observed data {name!r} hold {int(bad.sum())} missing values (NaN), the first "
                f"at index {first}; the density is NaN everywhere. Drop them, hide them with "
                "numpyro.handlers.mask, or sample the missing entries as a latent site of their "
                "own and join them with the data before obs=."
            )


def _why_it_failed(call: ModelCall, error: Exception) -> str:
    with_none = [n for n, v in call.kwargs.items() if isinstance(v, list) and None in v]
    message = (str(error).splitlines() or [""])[0]
    try:
        signature = str(inspect.signature(call.model))
    except (TypeError, ValueError):
        signature = "(...)"
    do = "Pass all its arguments after the model: sk.from_numpyro(model, *args, **kwargs)"
    if with_none:
        do = f"{_sites(with_none, 'argument')} holds None: drop or impute missing values"
    elif isinstance(error, jax.errors.JAXTypeError) or not isinstance(error, TypeError):
        do = "It is traced by JAX: branch with jnp.where, and keep shapes free of sampled values"
    return (
        f"The model {call} failed when called: {type(error).__name__}: {message} "
        f"It takes {call.name}{signature}. {do}."
    )


def _sites(names: Sequence[str], noun: str = "site") -> str:
    return f"{noun}{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _is_discrete(site: Trace) -> bool:
    support = site["fn"].support
    return support is not None and bool(support.is_discrete)


def _layers(fn: Any) -> Iterator[Any]:
    """Yield a distribution and those it wraps."""
    while fn is not None:
        yield fn
        fn = getattr(fn, "base_dist", None)


def _nan(values: Any) -> np.ndarray:
    floating = jnp.issubdtype(getattr(values, "dtype", type(values)), np.floating)
    return np.isnan(np.asarray(values)) if floating else np.zeros((), bool)


def _fingerprint(leaf: Any) -> object:
    if is_array(leaf):
        return leaf.shape, str(leaf.dtype)
    return leaf if isinstance(leaf, int | float | str) else type(leaf)


def _same(ours: Any, theirs: Any) -> bool:
    """Compare two leaves of the arguments; what cannot be compared is different."""
    if ours is theirs:
        return True
    if type(ours) is not type(theirs):
        return False
    if is_array(ours):
        traits = [(a.shape, a.dtype, getattr(a, "weak_type", None)) for a in (ours, theirs)]
        if traits[0] != traits[1] or jnp.issubdtype(ours.dtype, jax.dtypes.extended):
            return False
        return np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()
    return isinstance(ours, int | float | str) and ours == theirs
