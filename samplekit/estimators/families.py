"""Named exponential families: `sk.families.gamma().fit(X).params_`.

| constructor | domain | natural parameters θ | usual parameters | default weight |
|---|---|---|---|---|
| gaussian, gaussian_graphical_model | R^d | Kμ, K | mean, precision, ... | none: the MLE |
| exponential | y > 0 | λ | rate, mean | h = y: the MLE |
| gamma | y > 0 | α − 1, β | shape, rate, mean | log y: method of moments |
| inverse_gamma | y > 0 | α + 1, β | shape, scale | log y |
| lognormal | y > 0 | μ/σ², 1/σ² | log_mean, log_sd | log y: the MLE |
| truncated_normal | [l, u] | μ/σ², 1/σ² | location, scale | log(1 + t), min(t) |
| truncated_gaussian | y > 0 in R^d | Kμ, K | location, precision | min(y_j, 3) |
| beta | (0, 1) | α − 1, β − 1 | alpha, beta, mean | logit |
| dirichlet | simplex | α | concentration | log(y_j/y_p) |
| von_mises, sine_torus | angles | κ(cos μ, sin μ); κ₁, κ₂, λ | location, ...; the same | none |
| von_mises_fisher | sphere | κμ | mean_direction, concentration | none |
| bingham, fisher_bingham | sphere | A (and b) | matrix (and vector) | none |
| polynomial, quartic | R; R² | coefficients; τ | the same | none |
| generalized_gaussian | R | τ of exp(−τ·abs(y)^p) | rate, scale | abs(y)^(2−p): the MLE |
| pairwise | y > 0 in R^d | η, K | linear, precision | min(y, 3)^(2−min(a, b, 1)) |

Every default is consistent and has valid standard errors; a weight that is not is refused. t is the
distance to the boundary, in units of the data's spread for the truncated Gaussians. A new family
is one function that returns `NamedFamily(Family(...))`.
"""

from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial
from scipy import special

from samplekit.core.errors import EstimatorError
from samplekit.estimators import quadratic
from samplekit.estimators.directional import (
    bingham,
    fisher_bingham,
    sine_torus,
    von_mises,
    von_mises_fisher,
)
from samplekit.estimators.domains import interval
from samplekit.estimators.family import Family, NamedFamily, Options, Params
from samplekit.estimators.multivariate import (
    dirichlet,
    gaussian,
    gaussian_graphical_model,
    pairwise,
    quartic,
    truncated_gaussian,
)
from samplekit.estimators.punctured import Punctured
from samplekit.estimators.weights import distance, log1p_distance

__all__ = [
    "Family",
    "NamedFamily",
    "beta",
    "bingham",
    "dirichlet",
    "exponential",
    "fisher_bingham",
    "gamma",
    "gaussian",
    "gaussian_graphical_model",
    "generalized_gaussian",
    "inverse_gamma",
    "lognormal",
    "pairwise",
    "polynomial",
    "quartic",
    "sine_torus",
    "truncated_gaussian",
    "truncated_normal",
    "von_mises",
    "von_mises_fisher",
]


def exponential(**options: Unpack[Options]) -> NamedFamily:
    """Return the exponential family, λ exp(−λy) on y > 0.

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.estimators import families
    >>> X = np.array([[1.0], [2.0], [6.0]])
    >>> families.exponential().fit(X).params_  # the MLE
    {'mean': 3.0, 'rate': 0.333...}
    """
    return NamedFamily(
        Family(
            "exponential",
            made_with={},
            statistics=_minus,
            names=lambda d: ["rate"],
            usual=lambda t, d: {"rate": t[0], "mean": 1 / t[0]},
            natural=lambda rate, **_: np.array([rate]),
            draw=lambda random, n, rate, **_: random.exponential(1 / rate, n),
            log_normalizer=lambda t, d: -np.log(t[0]),
            domain="positive",
            weight=distance(),
        ),
        **options,
    )


def gamma(**options: Unpack[Options]) -> NamedFamily:
    """Return the gamma family, y^(shape−1) exp(−rate·y) on y > 0.

    Examples
    --------
    >>> from samplekit.estimators import families
    >>> gamma = families.gamma()
    >>> X = gamma.draw(0, 1000, shape=3.0, rate=2.0)
    >>> params = gamma.fit(X).params_
    >>> mean, variance = X.mean(), X.var()
    >>> bool(abs(params["shape"] - mean**2 / variance) < 1e-9)  # the method of moments
    True
    """
    return NamedFamily(
        Family(
            "gamma",
            made_with={},
            statistics=_log_and_minus,
            names=lambda d: ["shape - 1", "rate"],
            usual=lambda t, d: {"shape": t[0] + 1, "rate": t[1], "mean": (t[0] + 1) / t[1]},
            natural=lambda shape, rate, **_: np.array([shape - 1, rate]),
            draw=lambda random, n, shape, rate, **_: random.gamma(shape, 1 / rate, n),
            log_normalizer=lambda t, d: special.gammaln(t[0] + 1) - (t[0] + 1) * np.log(t[1]),
            domain="positive",
        ),
        **options,
    )


def inverse_gamma(**options: Unpack[Options]) -> NamedFamily:
    """Return the inverse gamma family, y^(−shape−1) exp(−scale/y) on y > 0.

    Examples
    --------
    >>> from samplekit.estimators import families
    >>> family = families.inverse_gamma()
    >>> X = family.draw(0, 5000, shape=3.0, scale=2.0)
    >>> family.fit(X).confidence_interval(0.99).shape  # of both natural parameters
    (2, 2)
    """
    return NamedFamily(
        Family(
            "inverse_gamma",
            made_with={},
            statistics=_inverse,
            names=lambda d: ["shape + 1", "scale"],
            usual=lambda t, d: {"shape": t[0] - 1, "scale": t[1]},
            natural=lambda shape, scale, **_: np.array([shape + 1, scale]),
            draw=lambda random, n, shape, scale, **_: scale / random.gamma(shape, 1.0, n),
            log_normalizer=lambda t, d: special.gammaln(t[0] - 1) - (t[0] - 1) * np.log(t[1]),
            domain="positive",
        ),
        **options,
    )


def lognormal(**options: Unpack[Options]) -> NamedFamily:
    """Return the lognormal family: log y is N(log_mean, log_sd²).

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.estimators import families
    >>> family = families.lognormal()
    >>> X = family.draw(0, 1000, log_mean=0.4, log_sd=0.6)
    >>> bool(abs(family.fit(X).params_["log_mean"] - np.log(X).mean()) < 1e-9)  # the MLE
    True
    """
    return NamedFamily(
        Family(
            "lognormal",
            made_with={},
            statistics=_log_quadratic,
            base=_minus_log,
            names=lambda d: ["log_mean/log_sd²", "1/log_sd²"],
            usual=lambda t, d: {"log_mean": t[0] / t[1], "log_sd": 1 / jnp.sqrt(t[1])},
            natural=lambda log_mean, log_sd, **_: np.array([log_mean, 1.0]) / log_sd**2,
            draw=lambda random, n, log_mean, log_sd, **_: random.lognormal(log_mean, log_sd, n),
            log_normalizer=quadratic.log_normalizer,
            domain="positive",
        ),
        **options,
    )


def truncated_normal(
    lower: float = 0.0, upper: float = np.inf, **options: Unpack[Options]
) -> NamedFamily:
    """Return the normal family restricted to [lower, upper].

    `location` and `scale` are the mean and the standard deviation before truncation.

    Examples
    --------
    >>> from samplekit.estimators import families
    >>> family = families.truncated_normal(0.0, 2.0)
    >>> X = family.draw(0, 20000, location=1.0, scale=0.5)
    >>> round(family.fit(X).params_["scale"], 1)
    0.5
    """
    domain = interval(lower, upper)
    if not domain.boundary:
        raise EstimatorError("Both bounds are infinite: use sk.families.gaussian().")
    half = np.isfinite(lower) and not np.isfinite(upper)
    weight = log1p_distance(lower) if half else distance(lower, upper)

    def draw(random: np.random.Generator, n: int, location: float, scale: float, **_: Any) -> Any:
        from scipy.stats import truncnorm

        low, high = (lower - location) / scale, (upper - location) / scale
        return truncnorm.rvs(low, high, location, scale, size=n, random_state=random)

    def log_normalizer(t: Any, d: int) -> float:
        location, scale = t[0] / t[1], 1 / np.sqrt(t[1])
        ends = special.log_ndtr((np.array([upper, lower]) - location) / scale)
        share = ends[0] + np.log1p(-np.exp(ends[1] - ends[0]))
        return quadratic.log_normalizer(t, d) + float(share)

    return NamedFamily(
        Family(
            "truncated_normal",
            made_with={"lower": lower, "upper": upper},
            statistics=quadratic.statistics,
            names=lambda d: ["location/scale²", "1/scale²"],
            usual=lambda t, d: {"location": t[0] / t[1], "scale": 1 / jnp.sqrt(t[1])},
            natural=lambda location, scale, **_: np.array([location, 1.0]) / scale**2,
            draw=draw,
            log_normalizer=log_normalizer,
            domain=domain,
            weight=weight,
            quadratic=True,
        ),
        **options,
    )


def beta(**options: Unpack[Options]) -> NamedFamily:
    """Return the beta family, y^(alpha−1) (1−y)^(beta−1) on (0, 1).

    Examples
    --------
    >>> from samplekit.estimators import families
    >>> family = families.beta()
    >>> X = family.draw(0, 20000, alpha=2.0, beta=5.0)
    >>> round(family.fit(X).params_["mean"], 2)  # 2/7
    0.29
    """
    return NamedFamily(
        Family(
            "beta",
            made_with={},
            statistics=_two_logs,
            names=lambda d: ["alpha - 1", "beta - 1"],
            usual=_beta_usual,
            natural=lambda alpha, beta, **_: np.array([alpha - 1, beta - 1]),
            draw=lambda random, n, alpha, beta, **_: random.beta(alpha, beta, n),
            log_normalizer=lambda t, d: special.betaln(t[0] + 1, t[1] + 1),
            domain=(0.0, 1.0),
        ),
        **options,
    )


def polynomial(**options: Unpack[Options]) -> NamedFamily:
    """Return exp(θ₁y + θ₂y² + θ₃y⁴) on the line.

    With two deep wells the odd coefficient has a large error: score matching hardly sees how mass
    is shared between separate modes.

    Examples
    --------
    >>> from samplekit.estimators import families
    >>> family = families.polynomial()
    >>> X = family.draw(0, 20000, linear=0.3, square=1.0, fourth=-0.5)
    >>> round(family.fit(X).params_["fourth"], 1)
    -0.5
    """
    from samplekit.estimators import draws

    return NamedFamily(
        Family(
            "polynomial",
            made_with={},
            statistics=_powers,
            names=lambda d: ["linear", "square", "fourth"],
            usual=lambda t, d: {"linear": t[0], "square": t[1], "fourth": t[2]},
            natural=lambda linear, square, fourth, **_: np.array([linear, square, fourth]),
            draw=lambda random, n, linear, square, fourth, **_: draws.polynomial(
                random, n, (linear, square, fourth)
            ),
        ),
        **options,
    )


def generalized_gaussian(power: float, **options: Unpack[Options]) -> NamedFamily:
    """Return exp(−rate·|y|^power) on the line, the power known; 1 is Laplace, 2 Gauss.

    `scale` is rate^(−1/power).

    Examples
    --------
    >>> from samplekit.estimators import families
    >>> family = families.generalized_gaussian(1.0)
    >>> X = family.draw(0, 1000, rate=2.0)
    >>> bool(abs(1 / family.fit(X).params_["rate"] - abs(X).mean()) < 1e-9)  # the MLE
    True
    """
    if not power > 0:
        raise EstimatorError(f"power={power} is not positive.")

    def draw(random: np.random.Generator, n: int, rate: float, **_: Any) -> Any:
        size = (random.gamma(1 / power, 1.0, n) / rate) ** (1 / power)
        return size * random.choice([-1.0, 1.0], n)

    return NamedFamily(
        Family(
            "generalized_gaussian",
            made_with={"power": power},
            statistics=Partial(_minus_power, power),
            names=lambda d: ["rate"],
            usual=lambda t, d: {"rate": t[0], "scale": t[0] ** (-1 / power)},
            natural=lambda rate, **_: np.array([rate]),
            draw=draw,
            log_normalizer=lambda t, d: (
                np.log(2) + special.gammaln(1 + 1 / power) - np.log(t[0]) / power
            ),
            domain=Punctured(),
            weight=Partial(_power, 2 - power),
        ),
        **options,
    )


# Statistics: module-level functions, so that every estimator of a family shares its programs.


def _minus(y: Array) -> Array:
    return -y


def _log_and_minus(y: Array) -> Array:
    return jnp.concatenate([jnp.log(y), -y])


def _inverse(y: Array) -> Array:
    return jnp.concatenate([-jnp.log(y), -1 / y])


def _log_quadratic(y: Array) -> Array:
    return quadratic.statistics(jnp.log(y))


def _minus_log(y: Array) -> Array:
    return -jnp.log(y).sum()


def _two_logs(y: Array) -> Array:
    return jnp.concatenate([jnp.log(y), jnp.log1p(-y)])


def _powers(y: Array) -> Array:
    return jnp.concatenate([y, y**2, y**4])


def _power(power: float, y: Array) -> Array:
    return jnp.abs(y) ** power


def _minus_power(power: float, y: Array) -> Array:
    return -_power(power, y)


def _beta_usual(theta: Array, dim: int) -> Params:
    alpha, beta = theta[0] + 1, theta[1] + 1
    return {"alpha": alpha, "beta": beta, "mean": alpha / (alpha + beta)}
