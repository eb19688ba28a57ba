"""Paths: families of targets with the levels to go along, for `sk.anneal`.

A path is any object with

- `at(level)`: the ordinary target at a level, which may be traced;
- `levels`: the levels in the order they are visited;
- `kind`: "noise" (standard deviations σ, from large to small) or "temperature" (inverse
  temperatures β, from small to 1);
- `start(key, n)`: n positions, unconstrained, with a leading axis. For "temperature" they are exact
  draws of `at(levels[0])`.

It may also have `log_normalizer`, the log integral of exp(log density) at the first level of a
"temperature" path (0 if absent), `space`, if its targets have none, and `step_size`, the η of
Langevin at the last level of a "noise" path (`langevin_step` if absent). A path that is a pytree
of arrays is data of the compiled program: other weights need no new one.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from samplekit.core.errors import TargetError
from samplekit.core.protocols import DensityTarget, Position, Scalar, ScoreTarget, TargetFamily
from samplekit.core.pytree import Function, as_function, pytree, static
from samplekit.targets.combinators import OnSpaceOf
from samplekit.targets.space import Space

type Target = Any

# Levels of a tempered path when none are given.
BETAS = 50


@runtime_checkable
class Path[T](TargetFamily[T], Protocol):
    """A family of targets and the way through it."""

    @property
    def levels(self) -> Any:
        """The levels in the order they are visited."""
        ...

    @property
    def kind(self) -> str:
        """What a level is: "noise" or "temperature"."""
        ...

    def start(self, key: Array, n: int, /) -> Position:
        """Return `n` positions to begin with."""
        ...


@pytree
class NoisePath:
    """A family and its noise levels, from large to small."""

    family: Any
    levels: Any
    begin: Function | None = None
    kind: str = static(default="noise")

    def at(self, level: ArrayLike, /) -> Target:
        """Return the target at a noise level."""
        return self.family.at(level)

    @property
    def space(self) -> Space | None:
        """The space of the family or of its targets, if they have one."""
        return _space_of(self.family) or _space_of(self.family.at(self.levels[-1]))

    def start(self, key: Array, n: int, /) -> Position:
        """Return N(0, σ₁²) noise, or what the user's function gives."""
        if self.begin is not None:
            return self.begin(key, n)
        space = self.space
        if space is None:
            raise TargetError(
                f"{type(self.family).__name__} does not say what its positions look like. Give it "
                "a `space`, or give start=, a function of (key, n)."
            )
        return normal_positions(space, key, n, self.levels[0])


@pytree
class Bridge(OnSpaceOf):
    """The geometric bridge b^(1−β) p^β between a base b and a target p, both unconstrained."""

    base: Target
    target: Target
    beta: ArrayLike

    def _labels(self) -> Target:
        return self.target

    def log_density(self, x: Position, /) -> Scalar:
        """Return (1 − β) log b(x) + β log p(x)."""
        start, end = self.base.log_density(x), self.target.log_density(x)
        beta = jnp.asarray(self.beta, end.dtype)
        # 0 · (−inf) is NaN: an end of the bridge does not know the other one's support.
        start = jnp.where(beta == 1, jnp.zeros_like(end), (1 - beta) * start.astype(end.dtype))
        return start + jnp.where(beta == 0, jnp.zeros_like(end), beta * end)

    def score(self, x: Position, /) -> Position:
        """Return (1 − β) ∇ log b + β ∇ log p, the Stein score."""
        return jax.grad(self.log_density)(x)


@pytree
class Normal:
    """The standard normal on the unconstrained positions of a space, normalized."""

    space: Space = static()

    def log_density(self, x: Position, /) -> Scalar:
        """Return log p(x)."""
        flat = self.space.ravel(x)
        return -0.5 * jnp.sum(flat**2) - 0.5 * flat.size * math.log(2 * math.pi)

    def draw(self, key: Array, n: int) -> Position:
        """Return `n` exact draws."""
        return normal_positions(self.space, key, n, 1.0)


@pytree
class TemperedPath:
    """The geometric bridge from a base to a target, and its inverse temperatures."""

    target: Target
    base: Target
    levels: Any
    kind: str = static(default="temperature")

    def at(self, level: ArrayLike, /) -> Bridge:
        """Return b^(1−β) p^β at β = `level`."""
        return Bridge(self.base, self.target, level)

    @property
    def space(self) -> Space | None:
        """The space of the target."""
        return _space_of(self.target)

    @property
    def log_normalizer(self) -> float:
        """Log of the integral of the base; 0 when it is normalized."""
        return float(getattr(self.base, "log_normalizer", 0.0))

    def start(self, key: Array, n: int, /) -> Position:
        """Return exact draws of the base."""
        return self.base.draw(key, n)


def noise_path(
    family: Any, levels: ArrayLike, *, start: Callable[[Array, int], Any] | None = None
) -> NoisePath:
    """Return the path of a family through noise levels, from large to small.

    Parameters
    ----------
    family
        Any object with `at(sigma)`: `sk.targets.noised_mixture`, or your own.
    levels
        Standard deviations σ₁ > … > σ_L of the noise.
    start
        Where particles begin: a function of (key, n) that returns n positions; None is N(0, σ₁²).

    Examples
    --------
    >>> import numpy as np, samplekit as sk
    >>> family = sk.targets.noised_mixture([1, 4], [[-5.0, -5.0], [5.0, 5.0]])
    >>> path = sk.noise_path(family, np.geomspace(20, 0.1, 15))
    >>> sk.anneal(path, steps=20, particles=100, progress=False)["posterior"]["x"].shape
    (100, 1, 2)
    """
    if not isinstance(family, TargetFamily):
        raise TargetError(
            f"{type(family).__name__} has no at(sigma), so it is no family of targets. For a "
            "Gaussian mixture take sk.targets.noised_mixture(...); for data fit a "
            "noise-conditional score."
        )
    return NoisePath(family, check_levels(levels, "noise"), start and as_function(start))


def tempered_path(
    target: Target, base: Target = None, *, betas: ArrayLike | int = BETAS
) -> TemperedPath:
    """Return the geometric bridge b^(1−β) p^β from a base b to a target p.

    Parameters
    ----------
    target
        A density, normalized or not; `sk.anneal` estimates the log of its integral.
    base
        A density with exact draws, `draw(key, n)`, and, if it is not normalized, its
        `log_normalizer`; None is the standard normal on the unconstrained positions.
    betas
        Inverse temperatures, rising from 0 to 1; or how many, spaced as (k/n)³: most near the
        base, where a step in β changes most.

    Notes
    -----
    Base and target are bridged as densities of the unconstrained position, Jacobian included. The
    integral does not depend on coordinates, so for a NumPyro model it is the evidence.
    Neal 2001, doi:10.1023/A:1008923215028.

    Examples
    --------
    >>> import samplekit as sk
    >>> target = sk.from_energy(lambda x: (x**2).sum() / 2, dim=2)  # log Z = log 2π = 1.838
    >>> base = sk.targets.gaussian(2, 4.0)
    >>> out = sk.anneal(sk.tempered_path(target, base), steps=2, progress=False)
    >>> abs(out.attrs["log_z"] - 1.838) < 5 * out.attrs["log_z_error"] + 1e-3
    True
    """
    for what, density in (("target", target), ("base", base)):
        if density is not None and not isinstance(density, DensityTarget):
            seen = " only a score" if isinstance(density, ScoreTarget) else " no log density"
            raise TargetError(
                f"The {what} {type(density).__name__} has{seen}, but a tempered path weighs "
                "densities. Give a density, or anneal the score along noise levels (sk.noise_path)."
            )
    if base is None:
        space = _space_of(target)
        if space is None:
            raise TargetError(
                f"{type(target).__name__} has no space, so no standard base fits it. Give base=, a "
                "density with draw(key, n), on the same positions."
            )
        base = Normal(space)
    if not hasattr(base, "draw"):
        raise TargetError(
            f"The base {type(base).__name__} has no draw(key, n), but a path begins with exact "
            "draws. Take one of sk.targets, such as sk.targets.gaussian(dim), or leave base= out."
        )
    if isinstance(betas, int | np.integer):
        if betas < 2:
            raise TargetError(f"betas={betas} levels make no path. Take at least 2.")
        betas = np.linspace(0, 1, int(betas)) ** 3
    return TemperedPath(target, base, check_levels(betas, "temperature"))


def check_levels(levels: Any, kind: str) -> np.ndarray:
    """Return the levels as an array, or say what is wrong with them or their order."""
    try:
        array = np.asarray(levels, np.float64)
    except (TypeError, ValueError) as error:
        raise TargetError(f"levels={levels!r} cannot be read as numbers.") from error
    if kind not in ("noise", "temperature"):
        raise TargetError(f'A path of kind {kind!r} is not known: use "noise" or "temperature".')
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise TargetError(f"The levels must be a list of finite numbers, not {array}.")
    falls = np.diff(array) < 0
    if kind == "noise":
        if array.min() <= 0:
            raise TargetError(f"The noise level {array.min():g} is not positive.")
        if not falls.all():
            order = "rise" if (~falls).all() else "are not in order"
            raise TargetError(
                f"The noise levels {order}, from {array[0]:g} to {array[-1]:g}, but annealing goes "
                "from large noise to small: the other way round every particle ends far out. "
                "Reverse or sort them: levels[::-1]."
            )
        return array
    if array.min() < 0 or array[-1] != 1 or len(array) < 2 or not (np.diff(array) > 0).all():
        raise TargetError(
            f"The inverse temperatures go from {array[0]:g} to {array[-1]:g} in {len(array)} "
            "levels, but a tempered path rises from its base (0) to the target (1), each larger "
            "than the one before. Sort them and end with 1."
        )
    return array


def langevin_step(levels: ArrayLike, steps: int) -> float:
    """Return the η of Langevin at the last of some noise levels, by the rule of NCSNv2.

    Notes
    -----
    With σ the last level, γ the ratio to the one before and T steps, e = η²/(2σ²) brings
    (1−e)^{2T} (γ² − 2/(2−e)) + 2/(2−e), the variance after the level over that wanted, closest to
    1. Song and Ermon 2020, arXiv:2006.09011. A single level has no γ; e is 0.05 then.

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.targets.paths import langevin_step
    >>> eta = langevin_step(np.geomspace(50, 0.01, 232), 5)  # their CIFAR-10: ε = η²/2 = 6.2e-6
    >>> f"{eta**2 / 2:.2g}"
    '6.2e-06'
    """
    sigma = np.asarray(levels, np.float64)
    if sigma.size < 2:
        return float(math.sqrt(0.1) * sigma[-1])
    ratio = sigma[-2] / sigma[-1]
    e = np.geomspace(1e-8, 1.0, 200_001)[:-1]
    rest = 2 / (2 - e)
    wide = (1 - e) ** (2 * steps) * (ratio**2 - rest) + rest
    return float(math.sqrt(2 * e[np.argmin(np.abs(wide - 1))]) * sigma[-1])


def normal_positions(space: Space, key: Array, n: int, scale: ArrayLike) -> Position:
    """Return `n` positions with independent N(0, scale²) coordinates."""
    dtype = jnp.result_type(float)
    flat = jnp.asarray(scale, dtype) * jax.random.normal(key, (n, space.size), dtype)
    return jax.vmap(space.unravel)(flat)


def _space_of(target: Any) -> Space | None:
    return getattr(target, "space", None)
