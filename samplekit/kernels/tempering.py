"""Replica exchange: copies of the target at several temperatures that swap their positions."""

import dataclasses
import math
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from samplekit.core.errors import KernelError
from samplekit.core.protocols import DensityTarget, Position, Scalar, Stats
from samplekit.core.pytree import pytree, static
from samplekit.kernels.base import Base, NoiseKernel, follow, improved, unlearned

# The hottest inverse temperature of a ladder that was left open: a barrier of 100 nats becomes 1.
HOTTEST = 0.01
# Swaps of a d-dimensional Gaussian between β and β e^(−g) are accepted with probability
# 2Φ(−g√d / 2), which is one half at g√d = 1.35. More than MOST_LEVELS are too dear to be a default.
HALF_ACCEPTED = 1.35
MOST_LEVELS = 32


@pytree
class Hot:
    """The target p^β, on the positions that the kernel moves."""

    target: Any
    beta: Any

    def log_density(self, x: Position, /) -> Scalar:
        """Return β log p(x)."""
        value = self.target.log_density(x)
        return jnp.asarray(self.beta, value.dtype) * value

    def score(self, x: Position, /) -> Position:
        """Return β ∇ log p(x), the Stein score."""
        return jax.grad(self.log_density)(x)

    @property
    def space(self) -> Any:
        """The space of the target, if the kernel is shown it."""
        return getattr(self.target, "space", None)


@pytree
class TemperingState:
    """Where the replicas are; position and log density are those at β = 1."""

    position: Position
    log_density: Array
    replicas: Any  # states of the kernel, a row a temperature; log density and score those of p
    # between swaps: which pairs are next, and whose last end of the ladder was the hot one
    odd: Array
    was_hot: Array


@pytree
class Tempering(Base):
    """Replica exchange (parallel tempering): p^β at several β, neighbours swap positions.

    Parameters
    ----------
    kernel
        What moves each replica, such as `sk.HMC()`. Step sizes left open are tuned in warm-up for
        each temperature; a given one is that of β = 1 and elsewhere β^(−½) times as long. A metric
        is used if given, never learned: one shape does not fit all modes.
    betas
        Inverse temperatures, of which 1 is sampled. None: a geometric ladder down to 0.01, with as
        many levels (32 at most) as let half the swaps of a Gaussian pass, and whose inner levels
        are moved in warm-up until all neighbours swap equally often.

    Notes
    -----
    Neighbours i, j swap with probability min(1, exp((β_i − β_j)(log p(x_j) − log p(x_i)))), even
    and odd pairs in turn, which makes positions travel the ladder straight rather than diffuse.
    Invariant: Π_k p^β_k, of which the draws are the part with β = 1. Bias: none of its own. Cost:
    that of the kernel times the number of temperatures; `n_steps` counts all. `swap_rate` has the
    probability of each pair, coldest first; `round_trips` counts arrivals at β = 1 from the
    hottest, which is what finds modes. p^β is taken on unconstrained positions and must have a
    finite integral: with heavy tails give `betas` that end above dim / (dim + degrees of freedom).
    Syed et al. 2022, doi:10.1111/rssb.12464.

    Examples
    --------
    >>> import samplekit as sk
    >>> kernel = sk.Tempering(sk.HMC(leapfrogs=5))
    >>> run = sk.sample(sk.targets.grid(3), kernel, draws=50, warmup=100, progress=False)
    >>> run["sample_stats"]["swap_rate"].shape
    (4, 50, 5)
    """

    kernel: Any
    betas: Any = None
    # Known once prepared: what warm-up aims for in each replica (None: nothing), and what it tunes.
    inner_goal: float | None = static(default=None)
    inner_tunes: bool = static(default=False)
    ladder_tunes: bool = static(default=False)
    levels: int = static(default=0)  # 0: not prepared

    requires: ClassVar[type] = DensityTarget

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        follow(self, (self.kernel,))
        if self.levels:
            return
        if not isinstance(self.kernel, Base):
            raise KernelError(
                f"Tempering(kernel={self.kernel!r}) needs a kernel, such as sk.HMC(leapfrogs=5)."
            )
        parts: Any = getattr(self.kernel, "parts", (self.kernel,))
        if any(k.requires is not DensityTarget for k in parts):
            raise KernelError(
                f"{type(self.kernel).__name__} moves by a score or by blocks, but replicas are "
                "exchanged, and so must move, by log densities. Use sk.MALA() or sk.HMC()."
            )
        if self.betas is not None:
            object.__setattr__(self, "betas", _checked(self.betas))

    @property
    def exact(self) -> bool:
        """Exact if the kernel is."""
        return self.kernel.exact

    @property
    def parts(self) -> tuple[Any, ...]:
        """The kernels within."""
        return (self.kernel,)

    @property
    def tuned(self) -> tuple[bool, ...]:
        """Whether warm-up tunes them."""
        return (self.inner_tunes,)

    @property
    def tunes_step(self) -> bool:
        """Whether warm-up has something to do."""
        return not self.levels and (self.kernel.tunes_step or self.betas is None)

    def goal(self, dim: int) -> None:
        """Return None: each replica has its own goal, see `learn`."""
        del dim

    def prepare(self, dim: int, dtype: Any) -> Self:
        """Choose the ladder, and make a kernel for each temperature."""
        if self.levels:
            return self
        betas = _ladder(dim) if self.betas is None else self.betas
        kernel = unlearned(self.kernel)
        one = kernel.prepare(dim, dtype)
        each = [one.rescaled(np.asarray(b**-0.5, dtype)) for b in betas]
        return dataclasses.replace(
            self,
            kernel=jax.tree.map(lambda *a: np.stack(a), *each),
            betas=np.asarray(betas, dtype),
            inner_goal=kernel.goal(dim) if kernel.tunes_step else None,
            inner_tunes=kernel.tunes_step,
            ladder_tunes=self.betas is None,
            levels=len(betas),
        )

    @classmethod
    def rebuilt(cls, parts: list[Any], settings: dict[str, Any]) -> Self:
        """Return a kernel as the user gave it, from what a run says of it; numbers come later."""
        count = int(settings["levels"])
        betas = None if settings["ladder_tunes"] else np.geomspace(1, 0.5, count)
        return cls(parts[0], betas)

    def rescaled(self, factor: Any) -> Self:
        """Return the kernel for a target `factor` times as wide."""
        return dataclasses.replace(self, kernel=self.kernel.rescaled(factor))

    def tuning(self, *, on: Array) -> Self:
        """Tell the replicas' kernels."""
        if not self.inner_tunes:
            return self
        on = jnp.broadcast_to(on, (self.levels,))
        tell = jax.vmap(lambda kernel, on: kernel.tuning(on=on))
        return dataclasses.replace(self, kernel=tell(self.kernel, on))

    def learn(self, stats: Stats, count: Array) -> Self:
        """Tune each replica's kernel, and even out the swaps."""
        changes: dict[str, Any] = {}
        if self.inner_tunes:
            own = {
                name.removeprefix("_replica_"): jnp.moveaxis(value, -1, 0)  # chains may be pooled
                for name, value in stats.items()
                if name.startswith("_replica_")
            }
            better = jax.vmap(lambda k, s: improved(k, s, count, self.inner_goal))
            changes["kernel"] = better(self.kernel, own)
        if self.ladder_tunes:
            rates = stats["swap_rate"].reshape(-1, self.levels - 1).mean(0)
            changes["betas"] = _evened(self.betas, rates, count)
        return dataclasses.replace(self, **changes)

    def init(self, key: Array, x: Position, target: DensityTarget, /) -> TemperingState:
        """Start all replicas at `x`."""
        levels = self.levels
        start = jax.vmap(lambda key, kernel: kernel.init(key, x, target))
        replicas = start(jax.random.split(key, levels), self.kernel)
        return TemperingState(
            x,
            replicas.log_density[0],
            replicas,
            jnp.zeros((), bool),
            jnp.arange(levels) == levels - 1,
        )

    def step(
        self, key: Array, state: TemperingState, target: DensityTarget, /
    ) -> tuple[TemperingState, Stats]:
        """Move every replica, then swap neighbours."""
        key_move, key_swap = jax.random.split(key)
        betas = jnp.asarray(self.betas)
        replicas, own = self._move(key_move, state.replicas, target)
        accept, rates = _swaps(key_swap, replicas.log_density, betas, state.odd)
        no = jnp.zeros(1, bool)
        up, down = (
            jnp.concatenate(pair).astype(jnp.int32) for pair in ((accept, no), (no, accept))
        )
        source = jnp.arange(self.levels, dtype=jnp.int32) + up - down
        replicas, was_hot = jax.tree.map(lambda a: a[source], (replicas, state.was_hot))
        position, log_density = jax.tree.map(
            lambda a: a[0], (replicas.position, replicas.log_density)
        )
        stats = {name: value[0] for name, value in own.items() if not name.startswith("_")}
        stats |= {
            "lp": log_density,
            "n_steps": jnp.sum(own.get("n_steps", jnp.ones(self.levels, jnp.int32))),
            "nonfinite": jnp.sum(own.get("nonfinite", jnp.zeros(self.levels, jnp.int32))),
            "swap_rate": rates,
            "round_trips": was_hot[0].astype(jnp.int32),
        }
        stats |= {f"_replica_{name}": value for name, value in own.items()}
        was_hot = was_hot.at[0].set(False).at[-1].set(True)
        return TemperingState(position, log_density, replicas, ~state.odd, was_hot), stats

    def _move(self, key: Array, replicas: Any, target: DensityTarget) -> tuple[Any, Stats]:
        """Take a step at every temperature; all noise comes from one key where it can."""
        betas, axes = jnp.asarray(self.betas), Hot(None, 0)
        states = _times(replicas, betas)
        if isinstance(self.kernel, NoiseKernel):
            x = jax.tree.map(lambda a: a[0], replicas.position)
            noise = self.kernel.noise(key, x, (self.levels,))
            go = jax.vmap(lambda k, n, s, t: k.move(n, s, t), (0, (0, None), 0, axes))
            states, stats = go(self.kernel, noise, states, Hot(target, betas))
        else:
            keys = jax.random.split(key, self.levels)
            go = jax.vmap(lambda k, key, s, t: k.step(key, s, t), (0, 0, 0, axes))
            states, stats = go(self.kernel, keys, states, Hot(target, betas))
        return _times(states, 1 / betas), stats


def _times(states: Any, factors: Array) -> Any:
    """Multiply the log densities and scores of stacked states: p to p^β and back."""

    def scaled(a: Array) -> Array:
        return a * factors.astype(a.dtype).reshape(-1, *(1,) * (a.ndim - 1))

    known = [name for name in ("log_density", "score") if hasattr(states, name)]
    changes = {name: jax.tree.map(scaled, getattr(states, name)) for name in known}
    return dataclasses.replace(states, **changes)


def _swaps(key: Array, log_density: Array, betas: Array, odd: Array) -> tuple[Array, Array]:
    """Return which neighbours swap, of the even or of the odd pairs, and how likely each is."""
    log_ratio = (betas[:-1] - betas[1:]) * (log_density[1:] - log_density[:-1])
    threshold = -jax.random.exponential(key, log_ratio.shape, log_ratio.dtype)
    turn = jnp.arange(log_ratio.size, dtype=jnp.int32) % 2 == odd.astype(jnp.int32)
    rates = jnp.nan_to_num(jnp.exp(jnp.minimum(log_ratio, 0.0)))
    return turn & (threshold <= log_ratio), rates


def _ladder(dim: int) -> np.ndarray:
    """Return the geometric ladder on which half the swaps of a Gaussian are accepted."""
    count = 1 + math.ceil(-math.log(HOTTEST) * math.sqrt(dim) / HALF_ACCEPTED)
    return np.geomspace(1.0, HOTTEST, min(MOST_LEVELS, count))


def _evened(betas: Array, rates: Array, count: Array) -> Array:
    """Widen the gaps of log β that swap more often than the mean, keeping both ends.

    Equal rates along a ladder give the most round trips (Syed et al. 2022).
    """
    gaps = -jnp.diff(jnp.log(betas))
    gain = 2.0 * (10.0 + count.astype(gaps.dtype)) ** -0.6
    wider = gaps * jnp.exp(gain * (rates - jnp.mean(rates)).astype(gaps.dtype))
    below = jnp.cumsum(wider * (jnp.sum(gaps) / jnp.sum(wider)))
    return jnp.concatenate([betas[:1], betas[0] * jnp.exp(-below[:-1]), betas[-1:]])


def _checked(betas: Any) -> np.ndarray:
    """Return given inverse temperatures from 1 downwards."""
    try:
        array = np.sort(np.asarray(betas, np.float64).ravel())[::-1]
    except (TypeError, ValueError) as error:
        raise KernelError(f"Tempering(betas={betas!r}) cannot be read as numbers.") from error
    fine = array.size >= 2 and np.isfinite(array).all() and array[0] == 1 and array[-1] > 0
    if not fine or not (np.diff(array) < 0).all():
        raise KernelError(
            f"Tempering(betas={betas!r}) needs two or more different inverse temperatures between "
            "0 and 1, 1 among them: it is the target's own, and hotter ones are smaller. For "
            "instance np.geomspace(1, 0.05, 6)."
        )
    return array
