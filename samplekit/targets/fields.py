"""Ising lattices and image denoising.

A sweep draws 32 random bits for every site by one call of the generator and then visits the colors
in turn: sites of one color are no neighbors, so all of them are drawn at once (chromatic Gibbs;
Gonzalez, Low, Gretton and Guestrin 2011). A site is set high when its log odds exceed logistic
noise. Which log odds would suffice is worked out for all sites before the first color is visited,
so what remains for each color is to add neighbors and compare, in integers on a lattice.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from samplekit.core.errors import TargetError
from samplekit.core.protocols import Scalar
from samplekit.core.pytree import pytree, static
from samplekit.targets.binary import Field, binary_space, logistic
from samplekit.targets.mixtures import Numbers, as_numbers, numbers
from samplekit.targets.space import Space

# No sum of neighbors is larger; beyond it, a demand on the neighbors is the same as never.
_NEVER = 100
_MOST_AXES = 8


@pytree
class Ising(Field):
    """Spins −1 and +1 on a lattice: log p = J Σ_⟨ij⟩ s_i s_j + Σ_i h_i s_i."""

    coupling: Numbers  # J
    field: Numbers  # h, one for all sites or one for each
    periodic: bool = static()
    space: Space = static()

    def log_density(self, x: Array, /) -> Scalar:
        """Return log p(x) up to a constant; `x` may be real, for gradients."""
        real, coupling, field = self._numbers(x)
        # Spins are added as integers where they are: exactly, and in less time.
        s, wide = (real, None) if real is x else (x.astype(jnp.int8), jnp.int32)
        bonds = jnp.sum(s * self._neighbors(s), dtype=wide).astype(real.dtype) / 2
        total = jnp.sum(s, dtype=wide).astype(real.dtype)
        return coupling * bonds + (jnp.sum(field * real) if field.ndim else field * total)

    def log_odds(self, x: Array, /) -> Array:
        """Return the log odds 2 (J Σ_j s_j + h_i) of +1 against −1 at every site."""
        s, coupling, field = self._numbers(x)
        return 2 * (coupling * self._neighbors(s) + field)

    def gibbs(self, key: Array, x: Array, /) -> Array:
        """Draw every spin once given the others, all spins of one color at a time."""
        needed = self._needed(key)
        direction = jnp.sign(jnp.asarray(self.coupling)).astype(jnp.int8)
        s = x.astype(jnp.int8)
        for color in range(int(self.colors.max()) + 1):
            drawn = jnp.where(direction * self._neighbors(s) >= needed, 1, -1).astype(jnp.int8)
            s = jnp.where(self.colors == color, drawn, s)
        return s.astype(x.dtype)

    def at(self, level: Any, /) -> "Ising":
        """Return the field at inverse temperature `level`: the density p^β."""
        coupling, field, beta = numbers(self.coupling, self.field, level)
        return dataclasses.replace(self, coupling=beta * coupling, field=beta * field)

    @property
    def colors(self) -> np.ndarray:
        """The color of every site, shaped as `x`; neighbors have different ones."""
        return _lattice_colors(self.shape, periodic=self.periodic)

    def _numbers(self, x: Array) -> tuple[Array, Array, Array]:
        real = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))
        return real, jnp.asarray(self.coupling, real.dtype), jnp.asarray(self.field, real.dtype)

    def _neighbors(self, s: Array) -> Array:
        """Return the sum over the neighbors of every site."""
        padded = jnp.pad(s, 1, mode="wrap" if self.periodic else "constant")
        inner = slice(1, -1)
        shifted = [
            padded[tuple(part if a == axis else inner for a in range(s.ndim))]
            for axis in range(s.ndim)
            for part in (slice(2, None), slice(0, -2))
        ]
        return functools.reduce(jnp.add, shifted)

    def _needed(self, key: Array) -> Array:
        """Return the least sum of neighbors, times the sign of J, that makes a site +1."""
        coupling, field = numbers(self.coupling, self.field)
        bits = jax.random.bits(key, self.shape, np.uint32)
        if field.ndim:
            least = (0.5 * logistic(bits, field.dtype) - field) / jnp.maximum(
                jnp.abs(coupling), jnp.finfo(field.dtype).tiny
            )
            return (jnp.clip(jnp.floor(least), -_NEVER, _NEVER) + 1).astype(jnp.int8)
        # Few sums are possible: compare the bits with the probability of each, and count. With
        # all neighbors there, every other sum is impossible.
        most, stride = 2 * len(self.shape), 2 if self.periodic else 1
        sums = np.arange(-most, most + 1, stride)
        limits = _last_bits(2 * (jnp.abs(coupling) * jnp.asarray(sums, field.dtype) + field))
        short = [(bits > limits[i]).astype(jnp.int8) for i in range(len(sums))]
        return (stride * functools.reduce(jnp.add, short) - most).astype(jnp.int8)

    def _quadratic(self) -> tuple[np.ndarray, np.ndarray]:
        index = np.arange(self.space.size).reshape(self.shape)
        weights = np.zeros((index.size, index.size))
        for axis in range(index.ndim):
            ahead = np.roll(index, -1, axis)
            last = index.shape[axis] if self.periodic else index.shape[axis] - 1
            pairs = [np.take(a, range(last), axis).ravel() for a in (index, ahead)]
            np.add.at(weights, tuple(pairs), float(self.coupling))
        field = np.broadcast_to(np.asarray(self.field, np.float64), self.shape)
        return field.ravel(), weights + weights.T


def _last_bits(log_odds: Array) -> Array:
    """Return the largest 32 bits, as a number, that say yes: P(bits ≤ limit) = σ(log odds).

    Of p and 1 − p the smaller one is rounded, to a multiple of 2⁻³²: no chance below that exists.
    """
    small = jax.nn.sigmoid(-jnp.abs(log_odds)) * 2.0**32
    count = jnp.clip(small, 1.0, 2.0**31).astype(jnp.uint32)
    return jnp.where(log_odds < 0, count - np.uint32(1), ~count)


@functools.lru_cache(maxsize=64)
def _lattice_colors(shape: tuple[int, ...], *, periodic: bool) -> np.ndarray:
    """Color a lattice like a checkerboard; a ring of odd length takes a third color.

    Along each axis neighbors differ by 1 or 2, hence modulo 3; sums of axes then differ as well.
    """
    odd = periodic and any(n % 2 for n in shape)
    total = np.zeros(shape, np.int8)
    for axis, n in enumerate(shape):
        line = np.arange(n) % 2
        if periodic and n % 2:
            line[-1] = 2
        total += line.astype(np.int8).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    colors = (total % (3 if odd else 2)).astype(np.int8)
    colors.setflags(write=False)
    return colors


def ising(
    shape: int | Sequence[int],
    coupling: float,
    field: ArrayLike = 0.0,
    *,
    periodic: bool = True,
) -> Ising:
    """Return the Ising model, log p(s) = J Σ_⟨ij⟩ s_i s_j + Σ_i h_i s_i on spins −1 and +1.

    Parameters
    ----------
    shape
        Of the lattice, in any number of dimensions; positions are int8 arrays of this shape.
    coupling
        J, which is β J where temperature is written apart. In two dimensions the critical value
        is log(1 + √2) / 2 = 0.4407.
    field
        h: one number, or one for each site.
    periodic
        Whether the lattice closes to a torus; otherwise border sites have fewer neighbors.

    Notes
    -----
    Exact moments up to 20 sites by enumeration (`exact`). Onsager 1944,
    doi:10.1103/PhysRev.65.117. Random bits are compared with probabilities in steps of 2⁻³².

    Examples
    --------
    >>> import samplekit as sk
    >>> target = sk.targets.ising((8, 8), coupling=0.3)
    >>> run = sk.sample(target, sk.Gibbs(), draws=50, warmup=100, progress=False)
    >>> run["posterior"]["x"].shape, run["posterior"]["x"].dtype
    ((4, 50, 8, 8), dtype('int8'))
    """
    sizes = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    space = binary_space(sizes, (-1, 1))
    if len(sizes) > _MOST_AXES:
        raise TargetError(f"shape={shape} has {len(sizes)} axes; at most {_MOST_AXES} are drawn.")
    if periodic and min(sizes) < 3:
        raise TargetError(
            f"A periodic axis of length {min(sizes)} (shape={sizes}) would join sites to "
            "themselves or twice to each other. Give lengths of 3 or more, or periodic=False."
        )
    strength, pull = as_numbers(coupling, "coupling"), as_numbers(field, "field")
    if strength.shape != ():
        raise TargetError(
            f"coupling has shape {strength.shape}, but one number is needed; weights that differ "
            "from bond to bond are for sk.targets.pairwise_field."
        )
    if pull.shape not in ((), sizes):
        raise TargetError(
            f"field has shape {pull.shape} for a lattice of {sizes}. Give one number "
            "or one for each site."
        )
    return Ising(strength, pull, bool(periodic), space)


def denoising_field(image: ArrayLike, coupling: float, flip: float) -> Ising:
    """Return the posterior of a binary image of which each pixel was flipped with a known chance.

    Parameters
    ----------
    image
        The noisy image: two values, of which the larger one is +1 in the field. Any dimension.
    coupling
        J of the Ising prior exp(J Σ_⟨ij⟩ s_i s_j): how much neighbors agree.
    flip
        Chance that a pixel was flipped, between 0 and 1.

    Notes
    -----
    A pixel y_i = s_i with chance 1 − ε has the log likelihood h s_i y_i, h = ½ log((1 − ε)/ε), up
    to a constant: an Ising field with h_i = h y_i. Geman and Geman 1984,
    doi:10.1109/TPAMI.1984.4767596.

    Examples
    --------
    >>> import numpy as np, samplekit as sk
    >>> noisy = np.zeros((6, 6), int)
    >>> noisy[2, 3] = 1  # a speck
    >>> sk.targets.denoising_field(noisy, coupling=0.8, flip=0.1).map(sweeps=100).x.max()
    np.int8(-1)
    """
    pixels = as_numbers(image, "image")
    if pixels.ndim < 1 or len(np.unique(pixels)) > 2:
        raise TargetError(
            f"image of shape {pixels.shape} has {len(np.unique(pixels))} values, but a binary "
            "image has two. Threshold it first, as in image > image.mean()."
        )
    if not 0 < flip < 1:
        raise TargetError(f"flip={flip} is not a chance between 0 and 1.")
    high = pixels == pixels.max() if np.ptp(pixels) else pixels > 0
    strength = 0.5 * np.log((1 - flip) / flip)
    return ising(pixels.shape, coupling, np.where(high, strength, -strength), periodic=False)
