"""What kernels share: states, the noise of a step, acceptance, and getting ready.

Most kernels are *noise kernels*: all randomness of a step is drawn first (`noise`), and the rest
(`move`) is a deterministic function of it. The loop draws the noise of all chains from one key a
step, which is what makes many chains run at the speed of the bare gradient, and gives chain 3 of 4
the same noise as chain 3 of 10,000.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from samplekit.core.errors import KernelError
from samplekit.core.keys import MANY, first_row
from samplekit.core.protocols import (
    DensityTarget,
    Position,
    ScoreTarget,
    Stats,
    log_density_and_score,
)
from samplekit.core.pytree import pytree
from samplekit.kernels.metric import Identity, Metric, initial_metric

type Noise = tuple[Any, Any]  # one row a chain, and what all chains share


@pytree
class DensityState:
    """Where a Metropolis chain is."""

    position: Position
    log_density: Array


@pytree
class GradientState:
    """Where a chain is that uses log density and score."""

    position: Position
    log_density: Array
    score: Position


@pytree
class ScoreState:
    """Where a chain is that knows the score alone."""

    position: Position
    score: Position


def density_state(x: Position, target: DensityTarget) -> DensityState:
    """Evaluate the log density at the start."""
    return DensityState(x, target.log_density(x))


def gradient_state(x: Position, target: DensityTarget) -> GradientState:
    """Evaluate log density and score at the start."""
    return GradientState(x, *log_density_and_score(target, x))


def score_state(x: Position, target: ScoreTarget) -> ScoreState:
    """Evaluate the score at the start."""
    return ScoreState(x, target.score(x))


class Base:
    """Settings that the loop reads off every kernel of ours."""

    requires: ClassVar[type] = DensityTarget
    # The loop hands these kernels one flat vector, whatever the pytree of the position.
    flat: ClassVar[bool] = True
    # Whether it moves real numbers, and whether integers and booleans.
    continuous: ClassVar[bool] = True
    discrete: ClassVar[bool] = False
    # Whether many chains run faster as one batch than one by one, also on a CPU.
    batched: ClassVar[bool] = False
    # Whether a few chains of a cheap target do so too, and pool what they learn in warm-up.
    few_batched: ClassVar[bool] = False
    # γ of dual averaging once the order of magnitude of the step is known. The acceptance of a
    # single proposal is noisy, and being convex in log η it ends below its goal if η jitters (a
    # random walk at 0.165 for 0.234 with Stan's 0.05).
    later_gamma: ClassVar[float] = 0.25
    # Settings measured in the target's length: they grow with it (`rescaled`).
    lengths: ClassVar[tuple[str, ...]] = ("step_size",)

    @property
    def exact(self) -> bool:
        """Whether the target itself is invariant, whatever the step size."""
        return True

    def prepare(self, dim: int, dtype: Any) -> Self:
        """Return the kernel with a number for each setting that was left open.

        The class stays, only leaves change: a tuned kernel is a kernel.
        """
        changes: dict[str, Any] = {}
        if hasattr(self, "metric"):
            setting = getattr(self, "metric")  # noqa: B009
            if isinstance(setting, str) and setting == "auto" and not self.tunes_step:
                setting = None  # a given step size is meant in the target's own units
            changes["metric"] = initial_metric(setting, dim, dtype)
        if hasattr(self, "step_size"):
            step = getattr(self, "step_size")  # noqa: B009
            given = np.asarray(self.first_step(dim) if step is None else step)
            if given.shape != () or given.dtype.kind not in "fiu":
                raise KernelError(
                    f"{type(self).__name__}(step_size={step!r}) needs one number. Where "
                    "coordinates have different scales, metric= takes their variances."
                )
            check_positive("step_size", float(given), self)
            changes["step_size"] = given.astype(dtype)
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def first_step(self, dim: int) -> float:
        """Return the step size that warm-up starts from."""
        return float(dim) ** -0.25

    @property
    def tunes_step(self) -> bool:
        """Whether warm-up chooses the step size."""
        return hasattr(self, "step_size") and getattr(self, "step_size") is None  # noqa: B009

    @property
    def tunes_metric(self) -> bool:
        """Whether warm-up learns the metric from the draws."""
        metric = getattr(self, "metric", None)
        return isinstance(metric, str) and (self.tunes_step or metric != "auto")

    def goal(self, dim: int) -> float | None:
        """Return the acceptance rate that warm-up aims for; None: there is none to aim for."""
        del dim
        return getattr(self, "target_accept", None)

    def rescaled(self, factor: Any) -> Self:
        """Return the kernel for a target `factor` times as wide."""
        known = [n for n in self.lengths if getattr(self, n, None) is not None]
        changes = {n: getattr(self, n) * factor for n in known}
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def tuning(self, *, on: Array) -> Self:
        """Return the kernel told whether `learn` will look at its next step; most do not care."""
        del on
        return self

    def moved(self, metric: Any) -> Self:
        """Return the kernel with another metric, at the end of a window of warm-up."""
        return dataclasses.replace(self, metric=metric)  # pyright: ignore

    def learn(self, stats: Stats, count: Array) -> Self:
        """Learn from one warm-up step what is special to this kernel; most have nothing.

        Statistics whose name begins with an underscore are seen here and never stored.
        """
        del stats, count
        return self


def improved[K: Base](kernel: K, stats: Stats, count: Array, goal: float | None) -> K:
    """Return the kernel after learning from a step, without the windows of `sample`'s warm-up.

    For kernels inside kernels and for particles: the step size follows its acceptance by Robbins
    and Monro, log η + g (α − goal) with g ∝ count^(−0.6), which sums to infinity and, squared,
    does not. `goal` is None where the step size is given.
    """
    kernel = kernel.learn(stats, count)
    if goal is None:
        return kernel
    step: Any = kernel.step_size  # pyright: ignore[reportAttributeAccessIssue]
    rate = jnp.mean(jnp.nan_to_num(stats["acceptance_rate"])).astype(step.dtype)
    gain = 2.0 * (10.0 + count.astype(step.dtype)) ** -0.6
    changed = step * jnp.exp(gain * (rate - goal))
    return dataclasses.replace(kernel, step_size=changed)  # pyright: ignore


def follow(kernel: Base, parts: Sequence[Any]) -> None:
    """Give a kernel made of kernels what the loop asks of all: it holds if it does for each."""
    for name in ("flat", "continuous", "discrete", "batched"):
        object.__setattr__(kernel, name, all(getattr(part, name, False) for part in parts))


def unlearned[K](kernel: K) -> K:
    """Return the kernel without a metric to be learned: only `sample`'s own windows learn one."""
    if isinstance(getattr(kernel, "metric", None), str):
        return dataclasses.replace(kernel, metric=None)  # pyright: ignore
    return kernel


class NoiseKernel(Base):
    """A kernel whose randomness is drawn before it moves."""

    batched: ClassVar[bool] = True

    def noise(self, key: Array, x: Position, shape: tuple[int, ...] = ()) -> Noise:
        """Return rows of noise with leading axes `shape`, and noise that all rows share.

        A chain that runs by itself asks for one row, of shape (), and a block of chains for some,
        with a key that stands for them (`samplekit.core.keys.row_of`): what is drawn by calls of
        JAX's `bits`, `uniform`, `normal` and the like, each with `shape` in front, is then what
        they have among all.
        """
        raise NotImplementedError

    def move(self, noise: Noise, state: Any, target: Any, /) -> tuple[Any, Stats]:
        """Return the next state and its statistics; nothing here is random."""
        raise NotImplementedError

    def step(self, key: Array, state: Any, target: Any, /) -> tuple[Any, Stats]:
        """Draw the noise of one step and move."""
        return self.move(self.noise(key, state.position), state, target)


def normal_rows(key: Array, x: Position, shape: tuple[int, ...]) -> Array:
    """Return standard normal noise, one vector as long as `x` for each row."""
    return noise_rows(key, x, shape, uniforms=0)[0]


def noise_rows(
    key: Array, x: Position, shape: tuple[int, ...], *, uniforms: int = 1
) -> tuple[Array, Array]:
    """Return for each row a standard normal vector as long as `x`, and numbers uniform on (0, 1).

    One call of the generator makes both: its code is most of what a small target compiles.
    """
    flat = jax.eval_shape(lambda p: ravel_pytree(p)[0], x)
    full, dtype = (*shape, flat.size + uniforms), flat.dtype
    many = math.prod(full) >= MANY
    # A few numbers are drawn as one row that is written down: XLA would else work short rows out
    # number by number, once wherever they are used, in six times the time.
    lowest = np.nextafter(np.asarray(-1, dtype), np.asarray(0, dtype))
    u = jax.random.uniform(key, full if many else (math.prod(full),), dtype, lowest, 1.0)
    z = jax.lax.erf_inv(u) * np.asarray(np.sqrt(2), dtype)
    z = z if many else jax.lax.optimization_barrier(z)
    own = u.reshape(full)[..., flat.size :]
    return z.reshape(full)[..., : flat.size], 0.5 + 0.5 * own


def shared_uniforms(key: Array, x: Position, rows: Array) -> Array:
    """Return the uniforms of the first row of `noise_rows`, for what all rows share."""
    first = first_row(key)
    if first is not key:  # of a chain by itself, or of a block of them
        return noise_rows(first, x, (), uniforms=rows.shape[-1])[1]
    return rows.reshape(-1, rows.shape[-1])[0]


def log_uniform(key: Array, x: Position, shape: tuple[int, ...]) -> Array:
    """Return log U, U uniform on (0, 1]: accept when log U ≤ log α."""
    dtype = jnp.result_type(*(a.dtype for a in jax.tree.leaves(x)))
    real = dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.result_type(float)
    return -jax.random.exponential(key, shape, real)


def metropolis(
    log_u: Array,
    log_ratio: Array,
    proposal: Any,
    state: Any,
) -> tuple[Any, Stats]:
    """Accept or reject, x' with probability min(1, exp(log_ratio)).

    A non-finite proposal is rejected and counted: one whose ratio is NaN or +inf. A ratio of −inf
    is a density of zero, an ordinary rejection.
    """
    broken = jnp.isnan(log_ratio) | (log_ratio == jnp.inf)
    log_alpha = jnp.where(broken, -jnp.inf, jnp.minimum(log_ratio, 0.0))
    accepted = log_u <= log_alpha
    state = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), proposal, state)
    stats = {
        "acceptance_rate": jnp.exp(log_alpha),
        "nonfinite": broken.astype(jnp.int32),
    }
    return state, stats


def all_finite(x: Position) -> Array:
    """Tell whether every number of a position is finite."""
    return jnp.all(jnp.asarray([jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(x)]))


def check_positive(name: str, value: Any, kernel: object) -> None:
    """Refuse a number that is not positive and finite, where the user writes it.

    Arrays are left to `prepare`: JAX builds kernels anew all the time, and looking into an array
    would wait for the program that computes it.
    """
    if isinstance(value, int | float) and not (math.isfinite(value) and value > 0):
        raise KernelError(
            f"{type(kernel).__name__}({name}={value}) needs a positive, finite {name}."
        )


def check_acceptance(value: float | None, kernel: object) -> None:
    """Refuse an acceptance rate outside (0, 1)."""
    if value is not None and not 0 < value < 1:
        raise KernelError(
            f"{type(kernel).__name__}(target_accept={value}) needs a rate between 0 and 1."
        )


def metric_of(kernel: Any) -> Metric:
    """Return the kernel's metric; one not prepared by the loop moves in the target's own units."""
    metric: Any = kernel.metric
    return Identity() if metric is None or isinstance(metric, str) else metric


@contextlib.contextmanager
def library_rules() -> Iterator[None]:
    """Trace another library's code under JAX's ordinary promotion rules.

    Users may set JAX to refuse implicit promotion; BlackJAX is not written for that.
    """
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
