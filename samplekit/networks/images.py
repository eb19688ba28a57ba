"""Convolutional networks for small images: an energy, and a score at every noise level.

Images are (height, width) or (height, width, channels), or the same numbers as a flat vector, which
is what kernels and tables hold. Any size goes, 8×8 and 28×28 as well as odd ones.
"""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from samplekit.core.errors import SettingsError
from samplekit.networks.mlp import MLP
from samplekit.networks.parts import (
    EMBEDDED,
    Activation,
    Shape,
    cast,
    check_sizes,
    drawn,
    one_sample,
    scaled_score,
    swish,
)

# Halved down to so many pixels, an image's parts have all met in the receptive field.
_SMALLEST = 4
_GROUP = 8  # channels in a group of the normalisation, at most


def _image_shape(shape: Shape) -> Shape:
    """Return (height, width, channels)."""
    full = (*shape, 1) if len(shape) == 2 else tuple(shape)
    if len(full) != 3 or min(full) < 1:
        raise SettingsError(
            f"shape={shape} is no image. Give (height, width) or (height, width, channels)."
        )
    return full


def _image(x: ArrayLike, shape: Shape) -> Array:
    """Return one image as (height, width, channels)."""
    return one_sample(x, shape).reshape(_image_shape(shape))


def _conv(key: Array, into: int, out: int, *, size: int = 3, stride: int = 1) -> eqx.nn.Conv2d:
    return eqx.nn.Conv2d(into, out, size, stride=stride, padding=size // 2, key=key)


def _convolve(layer: eqx.nn.Conv2d, h: Array) -> Array:
    """Apply a convolution to (height, width, channels) as one product of matrices.

    Each pixel's neighbourhood becomes a row. By XLA's convolutions, whose gradients are slow on a
    CPU, a step of training took about 7 times as long (width 16, 128 images of 8×8, 2 cores).
    """
    (size, _), (stride, _) = layer.kernel_size, layer.stride
    high, wide, _ = h.shape
    padded = jnp.pad(h, [(size // 2, size // 2)] * 2 + [(0, 0)])
    shifts = itertools.product(range(size), repeat=2)
    seen = [padded[i : i + high : stride, j : j + wide : stride] for i, j in shifts]
    weight = layer.weight.transpose(2, 3, 1, 0).reshape(-1, layer.out_channels)
    bias: Any = layer.bias
    return jnp.tensordot(jnp.concatenate(seen, axis=-1), weight, 1) + bias.reshape(1, 1, -1)


class EnergyCNN(eqx.Module):
    """An energy of small images by convolutions.

    Parameters
    ----------
    key
        Of the initial weights.
    shape
        Of an image: (height, width) or (height, width, channels).
    width
        Channels of the first layer; doubled where the image is halved, up to 4 times.
    activation
        Smooth, as in `MLP`.
    confinement
        c of the term ½c‖x‖², as in `EnergyMLP`.

    Notes
    -----
    E(x) = f(x) + ½c‖x‖², p ∝ exp(−E): 3×3 convolutions, by twos until 4 pixels are left a side, and
    one hidden dense layer. No pooling and no normalisation, which would make the energy rough or
    blind to scale (after Nijkamp, Hill, Zhu and Wu 2019, arXiv:1904.09770).

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from samplekit import networks
    >>> energy = networks.EnergyCNN(jax.random.key(0), (8, 8))
    >>> energy(jnp.zeros(64)).shape, energy(jnp.zeros((8, 8))).shape
    ((), ())
    """

    convolutions: tuple[eqx.nn.Conv2d, ...]
    head: MLP
    shape: Shape = eqx.field(static=True)
    activation: Activation = eqx.field(static=True)
    confinement: float = eqx.field(static=True)

    def __init__(
        self,
        key: Array,
        shape: Shape,
        *,
        width: int = 32,
        activation: Activation = swish,
        confinement: float = 0.0,
    ) -> None:
        check_sizes(width=width)
        high, wide, into = _image_shape(shape)
        sizes = [(into, width, 1)]
        while max(high, wide) > _SMALLEST:
            high, wide, into = -(-high // 2), -(-wide // 2), sizes[-1][1]
            sizes.append((into, min(2 * into, 4 * width), 2))
        below, top = jax.random.split(key)
        self.convolutions = drawn(
            below, lambda k: tuple(_conv(k, a, b, stride=stride) for a, b, stride in sizes)
        )
        flat = high * wide * sizes[-1][1]
        self.head = MLP(top, flat, 1, width=4 * width, depth=1, activation=activation)
        self.shape = tuple(shape)
        self.activation = activation
        self.confinement = float(confinement)

    def __call__(self, x: ArrayLike) -> Array:
        """Return the energy of one image, flat or not."""
        h = _image(x, self.shape)
        bowl = self.confinement / 2 * jnp.sum(h**2)
        for layer in cast(self.convolutions, h.dtype):
            h = self.activation(_convolve(layer, h))
        return self.head(h.ravel())[0] + bowl


class _Block(eqx.Module):
    """Two convolutions beside a shortcut, told the noise level between them.

    One key for all, as `drawn` draws the weights anew.
    """

    norms: tuple[eqx.nn.GroupNorm, eqx.nn.GroupNorm]
    convolutions: tuple[eqx.nn.Conv2d, eqx.nn.Conv2d]
    level: eqx.nn.Linear
    shortcut: eqx.nn.Conv2d

    def __init__(self, key: Array, into: int, out: int, embedded: int) -> None:
        self.norms = (_norm(into), _norm(out))
        self.convolutions = (_conv(key, into, out), _conv(key, out, out))
        self.level = eqx.nn.Linear(embedded, out, key=key)
        self.shortcut = _conv(key, into, out, size=1)

    def __call__(self, h: Array, embedded: Array, activation: Activation) -> Array:
        inner = _convolve(self.convolutions[0], activation(_normalize(self.norms[0], h)))
        inner = inner + self.level(embedded)[None, None]
        inner = _convolve(self.convolutions[1], activation(_normalize(self.norms[1], inner)))
        return _convolve(self.shortcut, h) + inner


def _norm(channels: int) -> eqx.nn.GroupNorm:
    groups = max(1, channels // _GROUP)
    return eqx.nn.GroupNorm(groups if channels % groups == 0 else 1, channels)


def _normalize(norm: eqx.nn.GroupNorm, h: Array) -> Array:
    """Apply a group normalisation to (height, width, channels)."""
    groups = h.reshape(*h.shape[:2], norm.groups, -1)
    mean = groups.mean(axis=(0, 1, 3), keepdims=True)
    variance = groups.var(axis=(0, 1, 3), keepdims=True)
    alike = ((groups - mean) * jax.lax.rsqrt(variance + norm.eps)).reshape(h.shape)
    weight, bias = (jnp.asarray(a)[None, None] for a in (norm.weight, norm.bias))
    return alike * weight + bias


class _Layers(eqx.Module):
    """The layers of a U-Net; one key for all, as `drawn` draws the weights anew."""

    level: MLP
    first: eqx.nn.Conv2d
    down: tuple[_Block, ...]
    halve: tuple[eqx.nn.Conv2d, ...]
    middle: _Block
    up: tuple[_Block, ...]
    last: eqx.nn.Conv2d

    def __init__(
        self, key: Array, channels: int, widths: list[int], activation: Activation
    ) -> None:
        told = 4 * widths[0]
        pairs = list(itertools.pairwise(widths))
        self.level = MLP(key, EMBEDDED, told, width=told, depth=1, activation=activation)
        self.first = _conv(key, channels, widths[0])
        self.down = tuple(_Block(key, w, w, told) for w in widths[:-1])
        self.halve = tuple(_conv(key, a, b, stride=2) for a, b in pairs)
        self.middle = _Block(key, widths[-1], widths[-1], told)
        self.up = tuple(_Block(key, a + b, a, told) for a, b in reversed(pairs))
        self.last = _conv(key, widths[0], channels)

    def __call__(self, h: Array, embedded: Array, activation: Activation) -> Array:
        told = activation(self.level(embedded))
        h = _convolve(self.first, h)
        kept = []
        for block, halve in zip(self.down, self.halve, strict=True):
            h = block(h, told, activation)
            kept.append(h)
            h = _convolve(halve, h)
        h = self.middle(h, told, activation)
        for block in self.up:
            same = kept.pop()
            twice = h.repeat(2, axis=0).repeat(2, axis=1)[: same.shape[0], : same.shape[1]]
            h = jnp.concatenate([same, twice], axis=-1)  # cut where a size was odd
            h = block(h, told, activation)
        return _convolve(self.last, h)


class UNet(eqx.Module):
    """The score of images plus noise, at every noise level, by a small U-Net.

    Parameters
    ----------
    key
        Of the initial weights.
    shape
        Of an image: (height, width) or (height, width, channels).
    width
        Channels at full size; doubled at each halving.
    halvings
        How often the image is halved: 2 makes 8 → 4 → 2 and 28 → 14 → 7.
    activation
        Smooth, as in `MLP`.
    data_scale
        Root mean square of the data, which should be centered.

    Notes
    -----
    s(x, σ) = −x/c² + (data_scale/(cσ)) f(x/c, log σ), c² = σ² + data_scale², as in
    `NoiseConditionalMLP`, with f a U-Net (Ronneberger, Fischer and Brox 2015, arXiv:1505.04597) of
    one residual block a size on the way down and up, group normalisation, and log σ added to the
    channels of each block (Ho, Jain and Abbeel 2020, arXiv:2006.11239). Returns the shape it was
    given: flat for flat.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from samplekit import networks
    >>> net = networks.UNet(jax.random.key(0), (8, 8), width=8)
    >>> net(jnp.zeros(64), 0.5).shape, net(jnp.zeros((8, 8)), 0.5).shape
    ((64,), (8, 8))
    """

    layers: _Layers
    shape: Shape = eqx.field(static=True)
    activation: Activation = eqx.field(static=True)
    data_scale: float = eqx.field(static=True)

    def __init__(
        self,
        key: Array,
        shape: Shape,
        *,
        width: int = 32,
        halvings: int = 2,
        activation: Activation = swish,
        data_scale: float = 1.0,
    ) -> None:
        check_sizes(width=width, halvings=halvings)
        channels = _image_shape(shape)[-1]
        widths = [width * 2**i for i in range(halvings + 1)]
        self.layers = drawn(key, lambda k: _Layers(k, channels, widths, activation))
        self.shape = tuple(shape)
        self.activation = activation
        self.data_scale = float(data_scale)

    def __call__(self, x: ArrayLike, sigma: ArrayLike) -> Array:
        """Return the score of one image at noise scale sigma, shaped as the image was given."""
        image = _image(x, self.shape)
        layers = cast(self.layers, image.dtype)

        def body(h: Array, embedded: Array) -> Array:
            return layers(h, embedded, self.activation)

        return scaled_score(body, image, sigma, self.data_scale).reshape(jnp.shape(x))
