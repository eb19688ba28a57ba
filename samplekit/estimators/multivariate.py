"""Named families in several dimensions; reached as `sk.families.<name>`."""

from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial
from scipy import special

from samplekit.core.errors import EstimatorError
from samplekit.estimators import draws, quadratic
from samplekit.estimators.family import Family, NamedFamily, Options, Params
from samplekit.estimators.graphs import GraphicalModel
from samplekit.estimators.weights import distance


def gaussian(dim: int | None = None, **options: Unpack[Options]) -> NamedFamily:
    """Return the Gaussian family in `dim` dimensions; None takes X's.

    Notes
    -----
    The closed form is the maximum-likelihood estimate, computed from second moments about a centre:
    K = S⁻¹ with S the (biased) covariance.

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.estimators import families
    >>> X = np.random.default_rng(0).normal(2.0, 3.0, size=(500, 1))
    >>> params = families.gaussian().fit(X).params_
    >>> bool(np.isclose(params["sd"], X.std()))
    True
    """
    return NamedFamily(_gaussian("gaussian", dim, _gaussian_usual), **options)


def gaussian_graphical_model(
    dim: int | None = None,
    *,
    penalty: float | str | None = None,
    gamma: float = 0.5,
    **options: Unpack[Options],
) -> GraphicalModel:
    """Return the Gaussian family with partial correlations, and on request a sparse graph.

    Parameters
    ----------
    dim
        Columns; None takes X's.
    penalty
        None is the closed form; a number penalises the sum of |K_ij|, i ≠ j; "ebic" chooses the
        graph along a path of penalties. See `GraphicalModel`.
    gamma
        Of the extended BIC.

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.estimators import families
    >>> X = np.random.default_rng(0).normal(size=(1000, 3))
    >>> X[:, 1] += X[:, 0]
    >>> model = families.gaussian_graphical_model(penalty="ebic").fit(X)
    >>> model.edges_[["first", "second"]].to_numpy().tolist()
    [[0, 1]]
    """
    family = _gaussian("gaussian_graphical_model", dim, _graph_usual)
    return GraphicalModel(family, penalty=penalty, gamma=gamma, **options)


def truncated_gaussian(
    dim: int | None = None,
    *,
    penalty: float | str | None = None,
    gamma: float = 0.5,
    **options: Unpack[Options],
) -> GraphicalModel:
    """Return the Gaussian family restricted to y > 0 in every coordinate.

    The weight is min(y_j, 3) with y_j in units of its spread (Yu, Drton and Shojaie 2019). Exact
    draws are by rejection, for few dimensions.

    Parameters
    ----------
    dim
        Columns; None takes X's.
    penalty, gamma
        For a sparse graph, as in `gaussian_graphical_model`.

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.estimators import families
    >>> chain = np.eye(4) + 0.4 * (np.eye(4, k=1) + np.eye(4, k=-1))
    >>> model = families.truncated_gaussian(4, penalty="ebic")
    >>> X = model.draw(0, 4000, location=np.ones(4), precision=chain)
    >>> model.fit(X).edges_[["first", "second"]].sort_values("first").to_numpy().tolist()
    [[0, 1], [1, 2], [2, 3]]
    """
    family = Family(
        "truncated_gaussian",
        made_with={"dim": dim},
        statistics=quadratic.statistics,
        names=quadratic.names,
        usual=_truncated_usual,
        natural=lambda location, precision, **_: _natural(location, precision),
        draw=lambda random, n, location, precision, **_: draws.truncated_gaussian(
            random, n, location, precision
        ),
        domain="orthant",
        weight=distance(cap=3.0),
        dim=dim,
        quadratic=True,
    )
    return GraphicalModel(family, penalty=penalty, gamma=gamma, **options)


def dirichlet(dim: int | None = None, **options: Unpack[Options]) -> NamedFamily:
    """Return the Dirichlet family on the simplex, Π y_j^(α_j − 1); θ = α, the concentration.

    Examples
    --------
    >>> from samplekit.estimators import families
    >>> family = families.dirichlet()
    >>> X = family.draw(0, 20000, concentration=[1.0, 2.0, 3.0])
    >>> family.fit(X).params_["concentration"].round()
    array([1., 2., 3.])
    """
    family = Family(
        "dirichlet",
        made_with={"dim": dim},
        statistics=jnp.log,
        base=_minus_logs,
        names=lambda d: [f"concentration[{i}]" for i in range(d)],
        usual=lambda t, d: {"concentration": t},
        natural=lambda concentration, **_: np.asarray(concentration, float),
        draw=lambda random, n, concentration, **_: random.dirichlet(concentration, n),
        log_normalizer=lambda t, d: special.gammaln(t).sum() - special.gammaln(t.sum()),
        domain="simplex",
        dim=dim,
    )
    return NamedFamily(family, **options)


def quartic(**options: Unpack[Options]) -> NamedFamily:
    """Return exp(−τ(x⁴ + y⁴ + x²y²)) on the plane; its normaliser is √(π/τ)·K(¼), elliptic.

    Examples
    --------
    >>> from samplekit.estimators import families
    >>> family = families.quartic()
    >>> X = family.draw(0, 20000, tau=2.0)
    >>> round(family.fit(X).params_["tau"])
    2
    """
    family = Family(
        "quartic",
        made_with={},
        statistics=_quartic,
        names=lambda d: ["tau"],
        usual=lambda t, d: {"tau": t[0]},
        natural=lambda tau, **_: np.array([tau]),
        draw=lambda random, n, tau, **_: draws.quartic(random, n, tau),
        log_normalizer=lambda t, d: np.log(np.pi / t[0]) / 2 + np.log(special.ellipk(0.25)),
        dim=2,
    )
    return NamedFamily(family, **options)


def pairwise(
    a: float = 1.0,
    b: float = 1.0,
    dim: int | None = None,
    *,
    cap: float = 3.0,
    penalty: float | str | None = None,
    gamma: float = 0.5,
    **options: Unpack[Options],
) -> GraphicalModel:
    """Return the a-b pairwise family, exp(ηᵀy^b/b − y^aᵀKy^a/(2a)) on y > 0; b = 0 is ηᵀ log y.

    Parameters
    ----------
    a, b
        Powers: (1, 1) is the truncated Gaussian, (½, ½) the exponential square root, (½, 0) the
        gamma model.
    dim
        Columns; None takes X's.
    cap
        The default weight is min(y, cap)^(2 − min(a, b, 1)), in the units of y.
    penalty, gamma
        For a sparse graph, as in `gaussian_graphical_model`.

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.estimators import families
    >>> family = families.pairwise(0.5, 0.5, 2)
    >>> X = family.draw(0, 20000, linear=[0.5, 0.5], precision=np.eye(2))
    >>> family.fit(X).params_["precision"].shape
    (2, 2)
    """
    if not (a > 0 and b >= 0):
        raise EstimatorError(f"a={a} and b={b}: a must be positive and b not negative.")
    family = Family(
        "pairwise",
        made_with={"a": a, "b": b, "dim": dim, "cap": cap},
        statistics=Partial(_pairwise, a, b),
        names=lambda d: [f"linear[{i}]" for i in range(d)] + quadratic.names(d)[d:],
        usual=_pairwise_usual,
        natural=lambda linear, precision, **_: quadratic.join(
            np.atleast_1d(linear), np.atleast_2d(precision)
        ),
        draw=lambda random, n, linear, precision, **_: draws.pairwise(
            random, n, linear, precision=np.atleast_2d(precision), powers=(a, b)
        ),
        domain="orthant",
        weight=distance(power=2 - min(a, b, 1.0), cap=cap),
        dim=dim,
    )
    return GraphicalModel(family, penalty=penalty, gamma=gamma, **options)


def _gaussian(name: str, dim: int | None, usual: Any) -> Family:
    return Family(
        name,
        made_with={"dim": dim},
        statistics=quadratic.statistics,
        names=quadratic.names,
        usual=usual,
        natural=_natural_gaussian,
        draw=_draw_gaussian,
        log_normalizer=quadratic.log_normalizer,
        dim=dim,
        quadratic=True,
    )


def _gaussian_usual(theta: Array, dim: int) -> Params:
    linear, precision = quadratic.split(theta, dim)
    covariance = jnp.linalg.inv(precision)
    mean = covariance @ linear
    if dim == 1:
        return {"mean": mean[0], "sd": jnp.sqrt(covariance[0, 0]), "precision": precision[0, 0]}
    return {"mean": mean, "covariance": covariance, "precision": precision}


def _graph_usual(theta: Array, dim: int) -> Params:
    linear, precision = quadratic.split(theta, dim)
    root = jnp.sqrt(jnp.diag(precision))
    partial = -precision / root[:, None] / root[None, :] + 2 * jnp.eye(dim, dtype=theta.dtype)
    return {
        "mean": jnp.linalg.solve(precision, linear),
        "precision": precision,
        "partial_correlation": partial,
    }


def _truncated_usual(theta: Array, dim: int) -> Params:
    linear, precision = quadratic.split(theta, dim)
    return {"location": jnp.linalg.solve(precision, linear), "precision": precision}


def _pairwise_usual(theta: Array, dim: int) -> Params:
    linear, precision = quadratic.split(theta, dim)
    return {"linear": linear, "precision": precision}


def _precision(precision: Any, covariance: Any, sd: Any) -> Any:
    if precision is not None:
        return np.atleast_2d(precision)
    if covariance is not None:
        return np.linalg.inv(np.atleast_2d(covariance))
    if sd is None:
        raise EstimatorError("Give the precision, the covariance or (in one dimension) the sd.")
    return np.atleast_2d(1 / np.asarray(sd, float) ** 2)


def _natural(mean: Any, precision: Any) -> Any:
    matrix = np.atleast_2d(precision)
    return quadratic.join(matrix @ np.atleast_1d(mean), matrix)


def _natural_gaussian(
    mean: Any, *, precision: Any = None, covariance: Any = None, sd: Any = None, **_: Any
) -> Any:
    return _natural(mean, _precision(precision, covariance, sd))


def _draw_gaussian(
    random: np.random.Generator,
    n: int,
    mean: Any,
    *,
    precision: Any = None,
    covariance: Any = None,
    sd: Any = None,
    **_: Any,
) -> Any:
    return draws.gaussian(random, n, mean, _precision(precision, covariance, sd))


def _minus_logs(y: Array) -> Array:
    return -jnp.log(y).sum()


def _quartic(y: Array) -> Array:
    squares = y**2
    return -((squares**2).sum() + squares[0] * squares[1])[None]


def _pairwise(a: float, b: float, y: Array) -> Array:
    linear = jnp.log(y) if b == 0 else y**b / b
    # The diagonal has −y^{2a}/(2a), the rest −y_j^a y_l^a/a: twice K's upper triangle.
    return jnp.concatenate([linear, quadratic.statistics(y**a)[y.shape[0] :] / a])
