"""The error of the estimators."""

from samplekit.core.errors import SamplekitError


class EstimatorError(SamplekitError, ValueError):
    """The data or the settings of an estimator cannot be used as given."""
