"""Families from families: products, weighted sums of scores, guidance.

Everything here is done level by level, with `sk.product` and `sk.tempered` of the targets.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from samplekit.core.errors import SettingsError, TargetError
from samplekit.core.protocols import Position, Scalar
from samplekit.core.pytree import Function, as_function, pytree
from samplekit.sampling.view import as_pytree
from samplekit.targets import combinators
from samplekit.targets.space import Space


class _LikeFirst:
    """Pass on the space and the levels of one family, if it has them."""

    def _first(self) -> Any:
        raise NotImplementedError

    @property
    def space(self) -> Space | None:
        """The space of the positions, if known."""
        return getattr(self._first(), "space", None)

    @property
    def levels(self) -> Any:
        """The noise levels that the first family was made for; None where it takes all."""
        return getattr(self._first(), "levels", None)


@pytree
class Combined(_LikeFirst):
    """The family whose score is a weighted sum of scores."""

    families: tuple[Any, ...]
    weights: Any

    def _first(self) -> Any:
        return self.families[0]

    def at(self, level: ArrayLike, /) -> Any:
        """Return the product of the targets at a level, each to the power of its weight."""
        powers = zip(self.families, jnp.asarray(self.weights, jnp.result_type(float)), strict=True)
        return combinators.product(*(combinators.tempered(f.at(level), w) for f, w in powers))


@pytree
class Likelihood:
    """log p(y | x) of noisy x at one level, as a density in x."""

    fn: Function
    level: Any

    def log_density(self, x: Position, /) -> Scalar:
        """Return the log likelihood."""
        return self.fn(x, self.level)


@pytree
class Guided(_LikeFirst):
    """A family times a likelihood to some power."""

    family: Any
    log_likelihood: Function
    scale: Any

    def _first(self) -> Any:
        return self.family

    def at(self, level: ArrayLike, /) -> Any:
        """Return the target times the likelihood at a level."""
        likelihood = Likelihood(self.log_likelihood, level)
        power = jnp.asarray(self.scale, jnp.result_type(float))
        return combinators.product(self.family.at(level), combinators.tempered(likelihood, power))


def product(*families: Any) -> Combined:
    """Return the family of products: at every level, all the densities multiplied.

    Notes
    -----
    Noise and product do not commute: at small noise this is the product of the densities, at large
    noise it is not the noisy product. A sampler must therefore stay close to the laws on its way:
    take a `corrector` (Du et al. 2023, arXiv:2302.11552).

    Examples
    --------
    >>> import jax.numpy as jnp, samplekit as sk
    >>> from samplekit import diffusion
    >>> one, two = (sk.targets.noised_mixture([1.0], [[m]], 1.0) for m in (0.0, 2.0))
    >>> diffusion.product(one, two).at(0.0).score(jnp.array([1.5])).tolist()
    [-1.0]
    """
    return combined(families, np.ones(len(families)))


def combined(families: Sequence[Any], weights: ArrayLike) -> Combined:
    """Return the family whose score is the weighted sum of the families' scores.

    Classifier-free guidance by w is `combined([conditional, unconditional], [1 + w, -w])`.

    Parameters
    ----------
    families
        Objects with `at(sigma)`, on the same positions.
    weights
        A number for each; negative ones divide.

    Notes
    -----
    Σ wᵢ sᵢ(x, σ). Guidance: Ho and Salimans 2022, arXiv:2207.12598. As for `product`, the levels
    are not those of a noising process unless the weights are those of one family.

    Examples
    --------
    >>> import jax.numpy as jnp, samplekit as sk
    >>> from samplekit import diffusion
    >>> given, free = (sk.targets.noised_mixture([1.0], [[m]], 1.0) for m in (1.0, 0.0))
    >>> stronger = diffusion.combined([given, free], [3.0, -2.0])
    >>> stronger.at(0.0).score(jnp.array([3.0])).tolist()
    [0.0]
    """
    _check(families)
    values = np.asarray(weights, np.float64)
    if values.shape != (len(families),) or not np.isfinite(values).all():
        raise SettingsError(
            f"weights={weights!r} are not {len(families)} finite numbers, one for each family."
        )
    return Combined(tuple(map(as_pytree, families)), values)


def guided(
    family: Any, log_likelihood: Callable[[Array, Array], Array], scale: float = 1.0
) -> Guided:
    """Return a family times a likelihood: samples that also explain an observation.

    Parameters
    ----------
    family
        An object with `at(sigma)`: the prior.
    log_likelihood
        log p(y | x̃) of one noisy position x̃ at noise σ, called as `log_likelihood(x, sigma)`: a
        noise-aware classifier, or a likelihood at the denoised position.
    scale
        Its power; above 1 the observation counts for more than it should.

    Notes
    -----
    s(x̃, σ) + scale ∇ log p(y | x̃, σ); at scale 1 and with the exact likelihood of noisy
    positions, the exact conditional score (Dhariwal and Nichol 2021, arXiv:2105.05233).

    Examples
    --------
    >>> import jax.numpy as jnp, samplekit as sk
    >>> from samplekit import diffusion
    >>> prior = sk.targets.noised_mixture([1.0], [[0.0]], 1.0)
    >>> posterior = diffusion.guided(prior, lambda x, sigma: -((x - 2.0) ** 2).sum() / 2)
    >>> posterior.at(0.0).score(jnp.array([1.0])).tolist()
    [0.0]
    """
    _check([family])
    if not callable(log_likelihood):
        raise TargetError(
            f"log_likelihood={log_likelihood!r} cannot be called. Give a function of a position "
            "and its noise level."
        )
    if not np.isfinite(scale):
        raise SettingsError(f"scale={scale!r} is not a finite number.")
    return Guided(as_pytree(family), as_function(log_likelihood), np.float64(scale))


def _check(families: Sequence[Any]) -> None:
    if not families:
        raise TargetError("There is no family to compose. Give at least one.")
    for family in families:
        if not hasattr(family, "at"):
            raise TargetError(
                f"{type(family).__name__} has no at(sigma), so it is no family of targets. Single "
                "targets are multiplied by sk.product."
            )
