"""Every family at a known truth: the rows of the formula sheet."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from samplekit.estimators import families
from samplekit.estimators.family import NamedFamily

_RANDOM = np.random.default_rng(7)
_ROOT = _RANDOM.normal(size=(4, 4))
PRECISION = _ROOT @ _ROOT.T / 4 + np.eye(4)
PAIR = np.array([[1.5, 0.5], [0.5, 1.0]])
AXES = np.array([[1.5, 0.4, 0.0], [0.4, 0.2, -0.3], [0.0, -0.3, -1.7]])


class Case(NamedTuple):
    """A family and the usual parameters at which it is tested."""

    family: NamedFamily
    params: Mapping[str, Any]


CASES = {
    "gaussian": Case(families.gaussian(), {"mean": 1.3, "sd": 0.7}),
    "gaussian-4": Case(
        families.gaussian(4), {"mean": [1.0, -2.0, 0.5, 0.0], "precision": PRECISION}
    ),
    "graph": Case(
        families.gaussian_graphical_model(4), {"mean": np.zeros(4), "precision": PRECISION}
    ),
    "exponential": Case(families.exponential(), {"rate": 2.0}),
    "gamma-0.5": Case(families.gamma(), {"shape": 0.5, "rate": 2.0}),
    "gamma-1.5": Case(families.gamma(), {"shape": 1.5, "rate": 2.0}),
    "gamma-3": Case(families.gamma(), {"shape": 3.0, "rate": 2.0}),
    "gamma-6": Case(families.gamma(), {"shape": 6.0, "rate": 2.0}),
    "inverse-gamma": Case(families.inverse_gamma(), {"shape": 3.0, "scale": 2.0}),
    "lognormal": Case(families.lognormal(), {"log_mean": 0.4, "log_sd": 0.6}),
    "half-line": Case(families.truncated_normal(), {"location": -0.5, "scale": 1.0}),
    "interval": Case(families.truncated_normal(-1.0, 2.0), {"location": 0.5, "scale": 1.0}),
    "orthant": Case(families.truncated_gaussian(2), {"location": [0.3, -0.2], "precision": PAIR}),
    "von-mises": Case(families.von_mises(), {"location": 0.7, "concentration": 2.5}),
    "sine": Case(families.sine_torus(), {"concentration": [1.5, 1.0], "dependence": 0.8}),
    "fisher": Case(
        families.von_mises_fisher(3),
        {"mean_direction": np.array([1.0, 2.0, 2.0]) / 3, "concentration": 4.0},
    ),
    "bingham": Case(families.bingham(), {"matrix": AXES}),
    "fisher-bingham": Case(families.fisher_bingham(), {"matrix": AXES, "vector": [1.0, -0.5, 2.0]}),
    "dirichlet": Case(families.dirichlet(4), {"concentration": [0.4, 1.5, 3.0, 0.8]}),
    "beta-2-5": Case(families.beta(), {"alpha": 2.0, "beta": 5.0}),
    "beta-small": Case(families.beta(), {"alpha": 0.5, "beta": 0.7}),
    "beta-5-6": Case(families.beta(), {"alpha": 5.0, "beta": 6.0}),
    "polynomial": Case(families.polynomial(), {"linear": 0.3, "square": 1.0, "fourth": -0.5}),
    "quartic": Case(families.quartic(), {"tau": 1.0}),
    "power-1": Case(families.generalized_gaussian(1.0), {"rate": 1.0}),
    "power-1.5": Case(families.generalized_gaussian(1.5), {"rate": 1.0}),
    "power-3": Case(families.generalized_gaussian(3.0), {"rate": 1.0}),
    "power-4": Case(families.generalized_gaussian(4.0), {"rate": 1.0}),
    "pairwise-1-1": Case(
        families.pairwise(1.0, 1.0, 2), {"linear": [0.5, -0.3], "precision": PAIR}
    ),
    "pairwise-sqrt": Case(
        families.pairwise(0.5, 0.5, 2), {"linear": [0.5, -0.3], "precision": PAIR}
    ),
    "pairwise-gamma": Case(
        families.pairwise(0.5, 0.0, 2), {"linear": [0.5, -0.3], "precision": PAIR}
    ),
}
