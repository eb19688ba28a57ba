"""Diffusions: noise to data by a score that is known at every noise level.

A process (`VE`, `VP`) adds noise to data. A score is a family of targets over noise levels,
`family.at(sigma)`: the exact one of a mixture (`sk.targets.noised_mixture`) or the learned one of a
noise-conditional network; one family serves every process. A plain function score(x, t) of the
process's own position and time does as well.

- `reverse` samples by the reverse SDE, with any kernel as corrector.
- `flow` samples by the probability-flow ODE, `encode` goes the other way, `log_likelihood` gives
  the density that belongs to it.
- `product`, `combined` and `guided` make families from families; `denoise` is Tweedie's formula.
"""

from samplekit.diffusion.compose import combined, guided, product
from samplekit.diffusion.flow import encode, flow
from samplekit.diffusion.likelihood import LogLikelihood, log_likelihood
from samplekit.diffusion.processes import VE, VP, Process
from samplekit.diffusion.reverse import reverse
from samplekit.diffusion.scores import denoise

__all__ = [
    "VE",
    "VP",
    "LogLikelihood",
    "Process",
    "combined",
    "denoise",
    "encode",
    "flow",
    "guided",
    "log_likelihood",
    "product",
    "reverse",
]
