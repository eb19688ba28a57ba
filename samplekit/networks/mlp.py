"""Networks of dense layers: a vector, an energy, a score at every noise level."""

import itertools

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from samplekit.networks.parts import (
    EMBEDDED,
    Activation,
    affine,
    cast,
    check_sizes,
    drawn,
    one_sample,
    scaled_score,
    swish,
)


class MLP(eqx.Module):
    """A multilayer perceptron, for a score or anything else.

    Parameters
    ----------
    key
        Of the initial weights.
    dim
        Numbers in.
    out
        Numbers out; None is `dim`, as a score has.
    width
        Of the hidden layers.
    depth
        Number of hidden layers; 0 is one affine map.
    activation
        Smooth, as `implicit` and `sliced` losses differentiate it twice: `jax.nn.silu`,
        `jax.nn.softplus`, `jnp.tanh`. A ReLU has no second derivative and would be fitted wrongly.
        The default is `jax.nn.silu` as a plain function, so that estimators can be pickled.

    Notes
    -----
    h ← φ(Wh + b), the last layer without φ. Weights start uniform on ±1/√(numbers in). The
    default φ(a) = a·sigmoid(a) is the swish of Ramachandran, Zoph and Le 2017, arXiv:1710.05941.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from samplekit import networks
    >>> net = networks.MLP(jax.random.key(0), 2)
    >>> net(jnp.ones(2)).shape, jax.vmap(net)(jnp.ones((5, 2))).shape
    ((2,), (5, 2))
    """

    layers: tuple[eqx.nn.Linear, ...]
    activation: Activation = eqx.field(static=True)

    def __init__(
        self,
        key: Array,
        dim: int,
        out: int | None = None,
        *,
        width: int = 128,
        depth: int = 2,
        activation: Activation = swish,
    ) -> None:
        check_sizes(dim=dim, width=width, depth=depth + 1, out=dim if out is None else out)
        sizes = [dim, *[width] * depth, dim if out is None else out]
        pairs = itertools.pairwise(sizes)
        self.layers = drawn(key, lambda k: tuple(eqx.nn.Linear(a, b, key=k) for a, b in pairs))
        self.activation = activation

    def __call__(self, x: ArrayLike) -> Array:
        """Return the output for one sample."""
        h = one_sample(x, (self.layers[0].weight.shape[1],))
        *hidden, last = cast(self.layers, h.dtype)
        for layer in hidden:
            h = self.activation(affine(layer, h))
        return affine(last, h)


class EnergyMLP(eqx.Module):
    """An energy by a multilayer perceptron.

    Parameters
    ----------
    key
        Of the initial weights.
    dim
        Numbers in.
    width, depth, activation
        As in `MLP`.
    confinement
        c of the term ½c‖x‖². A network of swishes grows at most linearly and may fall in some
        direction, so that exp(−E) has no integral and chains run away: any c > 0 prevents that.

    Notes
    -----
    E(x) = MLP(x) + ½c‖x‖², p ∝ exp(−E).

    Examples
    --------
    >>> import jax, jax.numpy as jnp, samplekit as sk
    >>> from samplekit import networks
    >>> energy = networks.EnergyMLP(jax.random.key(0), 2, confinement=1.0)
    >>> energy(jnp.ones(2)).shape
    ()
    >>> run = sk.sample(sk.from_energy(energy, 2), draws=50, warmup=50, progress=False)
    """

    net: MLP
    confinement: float = eqx.field(static=True)

    def __init__(
        self,
        key: Array,
        dim: int,
        *,
        width: int = 128,
        depth: int = 2,
        activation: Activation = swish,
        confinement: float = 0.0,
    ) -> None:
        self.net = MLP(key, dim, 1, width=width, depth=depth, activation=activation)
        self.confinement = float(confinement)

    def __call__(self, x: ArrayLike) -> Array:
        """Return the energy of one sample."""
        value = one_sample(x, (self.net.layers[0].weight.shape[1],))
        return self.net(value)[0] + self.confinement / 2 * jnp.sum(value**2)


class NoiseConditionalMLP(eqx.Module):
    """The score of data plus noise, at every noise level, by a multilayer perceptron.

    Parameters
    ----------
    key
        Of the initial weights.
    dim
        Numbers in and out.
    width, depth, activation
        As in `MLP`.
    data_scale
        Root mean square of the data, which should be centered.

    Notes
    -----
    With c² = σ² + data_scale²,

        s(x, σ) = −x/c² + (data_scale/(cσ)) f(x/c, log σ).

    The first term is the score of N(0, c²I), right for σ far above the data, where f has nothing to
    add. In the second, f sees inputs of size 1 at every σ and has outputs of size 1 to find: for
    small σ the score is f/σ, as −ε/σ must be. Levels over many orders of magnitude then need no
    other weights (Karras, Aittala, Aila and Laine 2022, arXiv:2206.00364, whose denoiser this is).
    log σ enters as sines and cosines beside x (Tancik et al. 2020, arXiv:2006.10739), so any σ can
    be asked for, also between the levels of the training.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from samplekit import networks
    >>> net = networks.NoiseConditionalMLP(jax.random.key(0), 2)
    >>> net(jnp.ones(2), 0.1).shape
    (2,)
    >>> jax.vmap(net)(jnp.ones((5, 2)), jnp.linspace(0.1, 1.0, 5)).shape
    (5, 2)
    """

    net: MLP
    data_scale: float = eqx.field(static=True)

    def __init__(
        self,
        key: Array,
        dim: int,
        *,
        width: int = 128,
        depth: int = 2,
        activation: Activation = swish,
        data_scale: float = 1.0,
    ) -> None:
        check_sizes(dim=dim)
        self.net = MLP(key, dim + EMBEDDED, dim, width=width, depth=depth, activation=activation)
        self.data_scale = float(data_scale)

    def __call__(self, x: ArrayLike, sigma: ArrayLike) -> Array:
        """Return the score of one sample at noise scale sigma."""
        value = one_sample(x, (self.net.layers[-1].weight.shape[0],))

        def body(x: Array, embedded: Array) -> Array:
            return self.net(jnp.concatenate([x, embedded]))

        return scaled_score(body, value, sigma, self.data_scale)
