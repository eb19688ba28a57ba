"""Stop rules: when a run has enough draws."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from samplekit.sampling.convergence import summarize_blocks


@dataclasses.dataclass(frozen=True)
class Converged:
    r"""Stop once every scalar has mixed and has enough effective draws.

    Parameters
    ----------
    rhat
        The rank-normalized split R-hat of every scalar must be below this.
    ess
        The bulk and the tail effective sample size of every scalar, over all chains together,
        must be at least this.

    Notes
    -----
    The rule is met if, over all scalars i,

    .. math::

        \max_i \hat R_i < r \quad\text{and}\quad
        \min_i \min(\mathrm{ESS}^{\mathrm{bulk}}_i, \mathrm{ESS}^{\mathrm{tail}}_i) \ge n,

    with the numbers of `samplekit.sampling.convergence`. Scalars that are equal in all chains
    and draws are left out; anything undefined (non-finite draws, a single chain, everything
    constant) never meets it.

    Looking again and again and stopping at the first success favors the moments at which the
    noisy numbers happen to look good, so a stopped run is a little worse than its numbers say.
    The bias shrinks with the noise: an effective sample size of 400 is what R-hat, the
    variances and the autocorrelations need to be reliable themselves [1]_. Lower it only for
    a rough look.

    References
    ----------
    .. [1] Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), Bayesian Analysis 16(2),
       doi:10.1214/20-BA1221.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(4, 1000))
    >>> Converged().met({"x": x}), Converged().met({"x": x[:, :50]}), Converged().met({"x": x[:1]})
    (True, False, False)
    """

    rhat: float | int = 1.01
    ess: float | int = 400

    def __post_init__(self) -> None:
        # Written so that NaN is refused as well.
        if not self.rhat > 1:
            msg = (
                f"Converged(rhat={self.rhat}) is no bound to reach: the R-hat of chains that agree "
                "scatters around 1. Use a value above 1, such as 1.01."
            )
            raise ValueError(msg)
        if not 0 < self.ess < np.inf:
            msg = (
                f"Converged(ess={self.ess}) is not an effective sample size: it counts draws. "
                "Use a positive number, such as 400."
            )
            raise ValueError(msg)

    def met(self, draws: Mapping[str, np.ndarray]) -> bool:
        """Tell whether all scalars have converged.

        Parameters
        ----------
        draws
            Variables of shape (chain, draw, *event).
        """
        looked = False
        for worst in summarize_blocks(draws):
            # One failing block decides; comparisons with NaN are false.
            enough = worst.ess_bulk >= self.ess and worst.ess_tail >= self.ess
            if not (worst.rhat < self.rhat and enough):
                return False
            looked = True
        return looked
