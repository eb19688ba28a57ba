"""Checks for targets, kernels and averages, public as scikit-learn's estimator checks are.

A Monte Carlo test can be wrong in two ways: fail by chance, or be too weak to notice anything.
Everything here states both: the chance of a false alarm, and the error that must not pass.
"""

from samplekit.testing.averages import assert_mean
from samplekit.testing.kernel import check_kernel
from samplekit.testing.target import check_target

__all__ = ["assert_mean", "check_kernel", "check_target"]
