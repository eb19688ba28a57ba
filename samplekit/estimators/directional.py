"""Named families of angles and directions; reached as `sk.families.<name>`."""

from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import special

from samplekit.estimators import draws
from samplekit.estimators.family import Family, NamedFamily, Options, Params


def von_mises(**options: Unpack[Options]) -> NamedFamily:
    """Return the von Mises family of angles, exp(κ cos(φ − μ)).

    Examples
    --------
    >>> from samplekit.estimators import families
    >>> family = families.von_mises()
    >>> X = family.draw(0, 20000, location=0.7, concentration=2.5)
    >>> round(family.fit(X).params_["location"], 1)
    0.7
    """
    family = Family(
        "von_mises",
        made_with={},
        statistics=_circle,
        names=lambda d: ["concentration·cos(location)", "concentration·sin(location)"],
        usual=lambda t, d: {
            "location": jnp.arctan2(t[1], t[0]),
            "concentration": jnp.sqrt((t**2).sum()),
        },
        natural=lambda location, concentration, **_: (
            concentration * np.array([np.cos(location), np.sin(location)])
        ),
        draw=lambda random, n, location, concentration, **_: random.vonmises(
            location, concentration, n
        ),
        log_normalizer=lambda t, d: np.log(2 * np.pi * special.i0e(np.hypot(*t))) + np.hypot(*t),
        domain="torus",
    )
    return NamedFamily(family, **options)


def sine_torus(**options: Unpack[Options]) -> NamedFamily:
    """Return the bivariate sine model about (0, 0), exp(κ₁cos φ₁ + κ₂cos φ₂ + λ sin φ₁ sin φ₂).

    Examples
    --------
    >>> from samplekit.estimators import families
    >>> family = families.sine_torus()
    >>> X = family.draw(0, 20000, concentration=[1.5, 1.0], dependence=0.8)
    >>> round(family.fit(X).params_["dependence"], 1)
    0.8
    """
    family = Family(
        "sine_torus",
        made_with={},
        statistics=_sine,
        names=lambda d: ["concentration[0]", "concentration[1]", "dependence"],
        usual=lambda t, d: {"concentration": t[:2], "dependence": t[2]},
        natural=lambda concentration, dependence, **_: np.append(concentration, dependence),
        draw=lambda random, n, concentration, dependence, **_: draws.sine_torus(
            random, n, concentration, dependence
        ),
        domain="torus",
        dim=2,
    )
    return NamedFamily(family, **options)


def von_mises_fisher(dim: int | None = None, **options: Unpack[Options]) -> NamedFamily:
    """Return the von Mises–Fisher family on unit vectors in `dim` dimensions, exp(κ μᵀy).

    Examples
    --------
    >>> from samplekit.estimators import families
    >>> family = families.von_mises_fisher(3)
    >>> X = family.draw(0, 20000, mean_direction=[1.0, 0.0, 0.0], concentration=4.0)
    >>> round(family.fit(X).params_["concentration"])
    4
    """
    family = Family(
        "von_mises_fisher",
        made_with={"dim": dim},
        statistics=_identity,
        names=lambda d: [f"(concentration·mean_direction)[{i}]" for i in range(d)],
        usual=_direction,
        natural=lambda mean_direction, concentration, **_: (
            concentration * np.asarray(mean_direction) / np.linalg.norm(mean_direction)
        ),
        draw=lambda random, n, mean_direction, concentration, **_: draws.von_mises_fisher(
            random, n, mean_direction, concentration
        ),
        log_normalizer=_fisher_normalizer,
        domain="sphere",
        dim=dim,
    )
    return NamedFamily(family, **options)


def bingham(dim: int = 3, **options: Unpack[Options]) -> NamedFamily:
    """Return the Bingham family on unit vectors, exp(yᵀAy) with A symmetric of trace zero.

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.estimators import families
    >>> family = families.bingham()
    >>> X = family.draw(0, 20000, matrix=np.diag([2.0, 0.0, -2.0]))
    >>> family.fit(X).params_["matrix"].diagonal().round()
    array([ 2.,  0., -2.])
    """
    family = Family(
        "bingham",
        made_with={"dim": dim},
        statistics=_axial,
        names=_axial_names,
        usual=lambda t, d: {"matrix": _matrix(t, d)},
        natural=lambda matrix, **_: _from_matrix(matrix),
        draw=lambda random, n, matrix, **_: draws.fisher_bingham(
            random, n, matrix, np.zeros(len(matrix))
        ),
        domain="sphere",
        dim=dim,
    )
    return NamedFamily(family, **options)


def fisher_bingham(dim: int = 3, **options: Unpack[Options]) -> NamedFamily:
    """Return the Fisher–Bingham family on unit vectors, exp(yᵀAy + bᵀy), A of trace zero.

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.estimators import families
    >>> family = families.fisher_bingham()
    >>> X = family.draw(0, 20000, matrix=np.diag([2.0, 0.0, -2.0]), vector=[0.0, 3.0, 0.0])
    >>> round(family.fit(X).params_["vector"][1])
    3
    """
    family = Family(
        "fisher_bingham",
        made_with={"dim": dim},
        statistics=_axial_and_linear,
        names=lambda d: _axial_names(d) + [f"vector[{i}]" for i in range(d)],
        usual=lambda t, d: {"matrix": _matrix(t[:-d], d), "vector": t[-d:]},
        natural=lambda matrix, vector, **_: np.append(_from_matrix(matrix), vector),
        draw=lambda random, n, matrix, vector, **_: draws.fisher_bingham(random, n, matrix, vector),
        domain="sphere",
        dim=dim,
    )
    return NamedFamily(family, **options)


def _circle(y: Array) -> Array:
    return jnp.concatenate([jnp.cos(y), jnp.sin(y)])


def _sine(y: Array) -> Array:
    return jnp.append(jnp.cos(y), jnp.prod(jnp.sin(y)))


def _identity(y: Array) -> Array:
    return y


def _direction(theta: Array, dim: int) -> Params:
    length = jnp.sqrt((theta**2).sum())
    return {"mean_direction": theta / length, "concentration": length}


def _fisher_normalizer(theta: Any, dim: int) -> float:
    """Return log of (2π)^{p/2} I_{p/2−1}(κ) κ^{1−p/2}."""
    kappa, order = float(np.linalg.norm(theta)), dim / 2 - 1
    bessel = np.log(special.ive(order, kappa)) + kappa
    return float(dim / 2 * np.log(2 * np.pi) + bessel - order * np.log(kappa))


def _axial(y: Array) -> Array:
    """Return y_j² − y_p² (j < p) and 2 y_j y_l (j < l), so that θᵀs = yᵀAy with A of trace 0."""
    i, j = np.triu_indices(y.shape[0], 1)
    return jnp.concatenate([y[:-1] ** 2 - y[-1:] ** 2, 2 * y[i] * y[j]])


def _axial_and_linear(y: Array) -> Array:
    return jnp.concatenate([_axial(y), y])


def _axial_names(dim: int) -> list[str]:
    i, j = np.triu_indices(dim, 1)
    diagonal = [f"matrix[{a},{a}]" for a in range(dim - 1)]
    return diagonal + [f"matrix[{a},{b}]" for a, b in zip(i, j, strict=True)]


def _matrix(theta: Array, dim: int) -> Array:
    i, j = np.triu_indices(dim, 1)
    upper = jnp.zeros((dim, dim), theta.dtype).at[i, j].set(theta[dim - 1 :])
    diagonal = jnp.append(theta[: dim - 1], -theta[: dim - 1].sum())
    return upper + upper.T + jnp.diag(diagonal)


def _from_matrix(matrix: Any) -> Any:
    """Return θ of a symmetric matrix; its trace makes no difference and is taken out."""
    matrix = np.asarray(matrix, float)
    dim = len(matrix)
    free = matrix - np.trace(matrix) / dim * np.eye(dim)
    return np.append(np.diag(free)[:-1], free[np.triu_indices(dim, 1)])
