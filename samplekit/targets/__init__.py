"""Targets: anything with an energy, a log density or a score; and the zoo with exact answers.

The zoo's makers are found here, as `sk.targets.gaussian(...)`, and loaded when first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samplekit.targets.fields import denoising_field as denoising_field
    from samplekit.targets.fields import ising as ising
    from samplekit.targets.pairwise import pairwise_field as pairwise_field
    from samplekit.targets.zoo import banana as banana
    from samplekit.targets.zoo import bimodal as bimodal
    from samplekit.targets.zoo import correlated as correlated
    from samplekit.targets.zoo import double_well as double_well
    from samplekit.targets.zoo import funnel as funnel
    from samplekit.targets.zoo import gaussian as gaussian
    from samplekit.targets.zoo import grid as grid
    from samplekit.targets.zoo import ill_conditioned as ill_conditioned
    from samplekit.targets.zoo import mixture as mixture
    from samplekit.targets.zoo import noised_mixture as noised_mixture
    from samplekit.targets.zoo import ring as ring
    from samplekit.targets.zoo import rosenbrock as rosenbrock
    from samplekit.targets.zoo import student_t as student_t

_HOME = dict.fromkeys(
    [
        "banana",
        "bimodal",
        "correlated",
        "double_well",
        "funnel",
        "gaussian",
        "grid",
        "ill_conditioned",
        "mixture",
        "noised_mixture",
        "ring",
        "rosenbrock",
        "student_t",
    ],
    "samplekit.targets.zoo",
) | {
    "denoising_field": "samplekit.targets.fields",
    "ising": "samplekit.targets.fields",
    "pairwise_field": "samplekit.targets.pairwise",
}

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'samplekit.targets' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
