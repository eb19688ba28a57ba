"""`diagnose`: whether draws may be trusted, and if not, what is to be done."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from samplekit.diagnostics.check_draws import check_draws
from samplekit.diagnostics.check_mixing import check_mixing
from samplekit.diagnostics.check_sampler import check_sampler
from samplekit.diagnostics.efficiency import efficiency_of
from samplekit.diagnostics.evidence import Evidence, gather
from samplekit.diagnostics.findings import Diagnosis, Finding, ordered
from samplekit.diagnostics.modes import check_modes
from samplekit.diagnostics.numbers import Numbers, measure

type Check = Callable[[Evidence, Numbers, Any], Iterable[Finding]]


def _check_bias(evidence: Evidence, numbers: Numbers, target: Any) -> Iterator[Finding]:
    """Check unadjusted kernels against the target."""
    del numbers
    if target is None and evidence.sampler.adjusted is not False:
        return
    from samplekit.diagnostics.bias import check_bias  # brings JAX, which most runs do not need

    yield from check_bias(evidence, target)


# In the order in which findings of one severity are told: what makes the rest meaningless first.
CHECKS: tuple[Check, ...] = (check_draws, check_modes, check_mixing, check_sampler, _check_bias)


def diagnose(run: Any, target: Any = None) -> Diagnosis:
    """Judge a run: whether its draws may be trusted, why not, and what to do next.

    Parameters
    ----------
    run
        The DataTree of `sample` or of any library that ArviZ reads (NumPyro, PyMC, CmdStan, emcee),
        a Dataset, a dict of arrays (chain, draw, ...), or the path of a Zarr folder or netCDF file.
    target
        What was sampled, if at hand: kernels without a Metropolis step are then checked for bias.

    Returns
    -------
    A `Diagnosis`: `.ok`, `.findings`, `.table`; print it.

    Notes
    -----
    Numbers are ArviZ's (Vehtari et al. 2021, doi:10.1214/20-BA1221); what they mean is decided
    here. Undefined is failure: NaN draws, frozen chains and a single chain are problems. Every
    statistical check allows for the noise that the run's own autocorrelation leaves and for the
    number of scalars, so that a healthy run is called a problem less than once in a hundred. What
    no check of draws can see: a mode that no chain has visited.

    Examples
    --------
    >>> import samplekit as sk
    >>> run = sk.sample(sk.targets.gaussian(2), progress=False)
    >>> sk.diagnose(run).ok
    True
    """
    evidence = gather(run)
    numbers = measure(evidence)
    findings = [finding for check in CHECKS for finding in check(evidence, numbers, target)]
    return Diagnosis(
        findings=ordered(findings),
        table=numbers.table,
        sampler=evidence.sampler,
        efficiency=efficiency_of(evidence, numbers),
        chains=evidence.chains,
        draws=evidence.draws,
    )
