"""`ExponentialFamily`: your statistics, one linear solve, errors that can be believed."""

from collections.abc import Callable
from typing import Any

import numpy as np

from samplekit.estimators.density import FittedDensity
from samplekit.estimators.setup import UNWEIGHTED, Setup, make_model, statistic_names


class ExponentialFamily(FittedDensity):
    """Fit p(y) ∝ exp(a(y) + θᵀs(y)) in closed form by the Fisher (Hyvärinen) score.

    Parameters
    ----------
    statistics
        s(y): takes one row of shape (d,), written with jax.numpy; returns k numbers, or a dict of
        numbers and vectors, whose keys (sorted) then name the parameters.
    base
        a(y), one number; None is zero.
    domain
        "reals" (None), "positive", "orthant", "simplex", "sphere", "torus", or a pair (lower,
        upper) of numbers or of one number per column.
    weight
        None fits in coordinates without a boundary (log y for "positive", the logit for an
        interval, log(y_j/y_p) on the simplex): consistent, with valid errors. A function h(y) with
        one number per column, zero at the boundary, fits in y itself. "unweighted" insists on
        h = 1, which on a bounded domain is wrong unless the density vanishes at its boundary.
    ridge
        Added to the diagonal of the system, relative to it where `standardize`. It biases θ̂
        towards zero; the standard errors are those of the biased estimate.
    standardize
        Scale the statistics before the solve.
    errors
        "lazy" keeps a reference to the data and computes standard errors when first asked for;
        "eager" computes them in `fit` and lets the data go; "none" never does. Data that pass once
        (iterators, `partial_fit`) leave a uniform subset of 16,384 rows behind for that purpose:
        beyond as many rows θ̂ is still that of all, and its standard errors are estimates, good to
        0.4 to 5 % in our families.

    Attributes
    ----------
    theta_
        The k parameters.
    covariance_, standard_errors_
        The sandwich (Godambe) covariance, and its root.
    condition_number_
        Of the scaled system.
    n_samples_seen_, n_features_in_, statistic_names_
        Rows, columns, names of θ.

    Notes
    -----
    θ̂ = Γ⁻¹g minimises the mean of Σ_j ½h_j(∂_j log p)² + h_j ∂²_j log p + ∂_j h_j ∂_j log p, in
    which the normalising constant does not occur: Hyvärinen 2005, JMLR 6; Yu, Drton and Shojaie
    2019, JMLR 20(76). Its covariance is Γ⁻¹ cov(Γ_i θ̂ − g_i) Γ⁻¹ / n. All sums are in float64 on
    CPU whatever JAX's switch, compensated float32 on accelerators.

    Score matching looks at slopes only: for densities with well separated modes the parameters
    that weigh the modes have large errors (11 times those of maximum likelihood for a double well
    exp(−(x² − 4)²)).

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np
    >>> import samplekit as sk
    >>> from samplekit.estimators.exponential_family import ExponentialFamily
    >>> X = np.random.default_rng(0).gamma(3.0, 0.5, size=(2000, 1))
    >>> gamma = ExponentialFamily(
    ...     lambda y: {"shape - 1": jnp.log(y[0]), "rate": -y[0]}, domain="positive"
    ... ).fit(X)
    >>> print(gamma.summary().round(2))
               estimate  standard_error  lower  upper
    natural
    rate           1.96            0.07   1.82   2.10
    shape - 1      1.96            0.10   1.76   2.15
    """

    def __init__(
        self,
        statistics: Callable[..., Any],
        base: Callable[..., Any] | None = None,
        domain: Any = None,
        weight: Any = None,
        *,
        ridge: float = 0.0,
        standardize: bool = True,
        errors: str = "lazy",
    ) -> None:
        self.statistics = statistics
        self.base = base
        self.domain = domain
        self.weight = weight
        self.ridge = ridge
        self.standardize = standardize
        self.errors = errors

    def _setup(self, dim: int) -> Setup:
        model = make_model(self.statistics, self.base, domain=self.domain, weight=self.weight)
        insisted = isinstance(self.weight, str) and self.weight == UNWEIGHTED
        return Setup(model, statistic_names(model, dim), own_weight=True, insisted=insisted)

    def __sklearn_tags__(self) -> Any:
        """Say what data can be fitted."""
        tags = super().__sklearn_tags__()
        lower = getattr(self.domain, "lower", (-np.inf,))
        tags.input_tags.positive_only = self.domain in ("positive", "orthant") or lower == (0.0,)
        return tags
