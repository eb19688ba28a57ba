"""What the networks share: checks, precision, the embedding of a noise level, the scaling by it."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike

from samplekit.core.errors import SettingsError, TargetError
from samplekit.core.keys import host_like_uniform, is_threefry

type Activation = Callable[[Array], Array]
type Shape = tuple[int, ...]

# Angular frequencies of the embedding of log σ. The slowest turns once in a factor e^25, wider than
# any range of levels; the fastest in a factor 2.2, about the ratio of a ladder's neighbours.
FREQUENCIES = np.geomspace(0.25, 8.0, 8)
EMBEDDED = 2 * len(FREQUENCIES)


def swish(a: Array) -> Array:
    """Return a·sigmoid(a), as `jax.nn.silu`: JAX's own compiled functions cannot be pickled."""
    return a * jax.nn.sigmoid(a)


def check_sizes(**sizes: int) -> None:
    """Refuse sizes that make no network."""
    for name, size in sizes.items():
        if size < 1:
            raise SettingsError(f"{name}={size} makes no network. Give 1 or more.")


def one_sample(x: ArrayLike, shape: Shape) -> Array:
    """Return x in its shape, if it is one sample; a flat image will do."""
    value = jnp.asarray(x)
    if not jnp.issubdtype(value.dtype, jnp.floating):
        value = value.astype(float)  # counts of pixels, say: weights cast to integers would be 0
    if value.shape not in {shape, (math.prod(shape),)}:
        raise TargetError(
            f"x has shape {value.shape}, but this network takes one sample of shape {shape}. For a "
            "batch along the first axis use jax.vmap(net)(x), and jax.vmap(net, (0, None))(x, "
            "sigma) with a noise level."
        )
    return value.reshape(shape)


def cast[M](module: M, dtype: np.dtype) -> M:
    """Return the weights in a precision: that of the sample decides, not that of the weights."""
    return jax.tree.map(lambda a: a.astype(dtype) if eqx.is_inexact_array(a) else a, module)


def affine(layer: eqx.nn.Linear, h: Array) -> Array:
    """Return Wh + b, in the order of products whose gradient is quick.

    The gradient of W over a batch is a product of out × batch × in numbers. Where the numbers in
    are few, XLA takes five times as long for (out, in) as for (in, out), a tenth of a training step
    of a small network; the barrier keeps it from turning the second into the first.
    """
    weight, bias = layer.weight, layer.bias
    if weight.shape[0] > 4 * weight.shape[1]:
        product = h @ jax.lax.optimization_barrier(weight.T)
    else:
        product = weight @ h
    return product if bias is None else product + bias


_LAYERS = (eqx.nn.Linear, eqx.nn.Conv2d, eqx.nn.GroupNorm)


def drawn[M](key: Array, make: Callable[[Array], M]) -> M:
    """Return the layers that `make` makes, all weights from one draw.

    As Equinox and PyTorch start them: uniform on ±1/√(numbers in), normalisations at the identity.
    A draw for each weight would compile a program for each shape, which for a U-Net takes longer
    than an epoch.
    """
    abstract = eqx.filter_eval_shape(make, key)  # the shapes alone, nothing is computed
    layers, treedef = jax.tree.flatten(abstract, is_leaf=lambda m: isinstance(m, _LAYERS))
    total = sum(leaf.size for leaf in jax.tree.leaves(layers))
    # Of NumPy, if they can be: they are drawn and cut into pieces without compiling anything.
    if isinstance(key, Tracer) or not is_threefry(key):
        numbers: Any = jax.random.uniform(key, (total,), minval=-1.0, maxval=1.0)
    else:
        numbers = 2 * host_like_uniform(key, total) - 1
    start = 0

    def fill(leaf: jax.ShapeDtypeStruct, bound: float) -> Array:
        nonlocal start
        start += leaf.size
        piece = numbers[start - leaf.size : start].reshape(leaf.shape)
        return jnp.asarray(bound * piece, leaf.dtype)

    def filled(layer: Any) -> Any:
        weight, bias = layer.weight, layer.bias
        if isinstance(layer, eqx.nn.GroupNorm):
            identity = (np.ones(weight.shape), np.zeros(bias.shape))
            values = [jnp.asarray(a, weight.dtype) for a in identity]
        else:
            bound = (weight.size / weight.shape[0]) ** -0.5
            values = [fill(weight, bound), fill(bias, bound)]
        return eqx.tree_at(lambda m: (m.weight, m.bias), layer, values)

    return jax.tree.unflatten(treedef, [filled(layer) for layer in layers])


def embed(sigma: Array) -> Array:
    """Return sines and cosines of log σ, by which a network tells noise levels apart."""
    angles = jnp.asarray(FREQUENCIES, sigma.dtype) * jnp.log(sigma)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)])


def scaled_score(
    body: Callable[[Array, Array], Array], x: Array, sigma: ArrayLike, data_scale: float
) -> Array:
    """Return the score at a noise level from a network whose inputs and outputs are of size 1.

    With c² = σ² + data_scale²: s = −x/c² + (data_scale/(cσ)) f(x/c, log σ).
    """
    level = jnp.asarray(sigma, x.dtype)
    size = jnp.sqrt(level**2 + data_scale**2)
    correction = body(x / size, embed(level))
    return data_scale / (size * level) * correction - x / size**2
