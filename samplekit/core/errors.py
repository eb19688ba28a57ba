"""Errors: each says what was seen, why it cannot work, and what to do instead."""

from typing import Any


class SamplekitError(Exception):
    """Base of every error that samplekit raises on purpose."""


class TargetError(SamplekitError, ValueError):
    """The target, its start positions or its data cannot be used as given."""


class KernelError(SamplekitError, ValueError):
    """The kernel's settings are wrong, or it does not fit the target."""


class EstimatorError(SamplekitError, ValueError):
    """The data or the settings of an estimator cannot be used as given."""


class SettingsError(SamplekitError, ValueError):
    """An argument is not usable: of `sample`, `resume`, a loss, a network or a training."""


class ResumeError(SamplekitError, ValueError):
    """A stored run cannot be continued with what was given."""


class StoreError(SamplekitError, OSError):
    """The folder of a stored run cannot be read or written.

    When a run was under way, `run` holds its draws so far.
    """

    run: Any = None


class ProcessError(SamplekitError, RuntimeError):
    """One of several processes that share a run has died, failed or never come."""


class TrainingError(SamplekitError, ArithmeticError):
    """Training diverged; `history` holds the numbers of every epoch until then."""

    history: Any = None


class DataWarning(UserWarning):
    """The data can be used, but not as well as they could be: the text says what to do."""
