# SPDX-License-Identifier: Apache-2.0
"""Sample energies, log densities, scores and NumPyro models, and know whether to trust it.

Everything that has an energy or a score is a *target*, everything that moves is a *kernel*, and
everything that comes out is an ArviZ DataTree. Importing this package imports nothing else: each
name is loaded when first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samplekit import diffusion as diffusion
    from samplekit import losses as losses
    from samplekit import networks as networks
    from samplekit import targets as targets
    from samplekit import testing as testing
    from samplekit.core import errors as errors
    from samplekit.diagnostics.diagnose import diagnose as diagnose
    from samplekit.diagnostics.distances import energy_distance as energy_distance
    from samplekit.diagnostics.distances import sliced_wasserstein as sliced_wasserstein
    from samplekit.diagnostics.efficiency import efficiency as efficiency
    from samplekit.diagnostics.gradient import closed_loop_work as closed_loop_work
    from samplekit.diagnostics.nested import nested_rhat as nested_rhat
    from samplekit.diagnostics.plot_mixing import plot_mixing as plot_mixing
    from samplekit.diagnostics.plot_target import plot_target as plot_target
    from samplekit.diagnostics.stein import stein_discrepancy as stein_discrepancy
    from samplekit.estimators import families as families
    from samplekit.estimators.change import ScoreCUSUM as ScoreCUSUM
    from samplekit.estimators.comparison import compare as compare
    from samplekit.estimators.conditional import ConditionalFamily as ConditionalFamily
    from samplekit.estimators.energy_network import EnergyNetwork as EnergyNetwork
    from samplekit.estimators.exponential_family import ExponentialFamily as ExponentialFamily
    from samplekit.estimators.hyvarinen import hyvarinen_score as hyvarinen_score
    from samplekit.estimators.kernel_family import (
        KernelExponentialFamily as KernelExponentialFamily,
    )
    from samplekit.estimators.noise_levels import noise_levels as noise_levels
    from samplekit.estimators.noise_network import (
        NoiseConditionalScoreNetwork as NoiseConditionalScoreNetwork,
    )
    from samplekit.estimators.rbm import BernoulliRBM as BernoulliRBM
    from samplekit.estimators.rbm import GaussBernoulliRBM as GaussBernoulliRBM
    from samplekit.estimators.score_network import ScoreNetwork as ScoreNetwork
    from samplekit.kernels.cycle import Cycle as Cycle
    from samplekit.kernels.discrete import GibbsWithGradients as GibbsWithGradients
    from samplekit.kernels.gibbs import Gibbs as Gibbs
    from samplekit.kernels.hamiltonian import HMC as HMC
    from samplekit.kernels.langevin import MALA as MALA
    from samplekit.kernels.langevin import Barker as Barker
    from samplekit.kernels.langevin import Langevin as Langevin
    from samplekit.kernels.mclmc import MCLMC as MCLMC
    from samplekit.kernels.metropolis import Independence as Independence
    from samplekit.kernels.metropolis import MetropolisHastings as MetropolisHastings
    from samplekit.kernels.metropolis import RandomWalk as RandomWalk
    from samplekit.kernels.nuts import NUTS as NUTS
    from samplekit.kernels.score_mala import ScoreMALA as ScoreMALA
    from samplekit.kernels.tempering import Tempering as Tempering
    from samplekit.reporting.api import report as report
    from samplekit.sampling.anneal import anneal as anneal
    from samplekit.sampling.api import kernel_of as kernel_of
    from samplekit.sampling.api import resume as resume
    from samplekit.sampling.api import sample as sample
    from samplekit.sampling.predictive import predictive as predictive
    from samplekit.sampling.stop import Converged as Converged
    from samplekit.targets.combinators import product as product
    from samplekit.targets.combinators import smoothed as smoothed
    from samplekit.targets.combinators import tempered as tempered
    from samplekit.targets.density import from_energy as from_energy
    from samplekit.targets.density import from_log_density as from_log_density
    from samplekit.targets.density import from_score as from_score
    from samplekit.targets.numpyro import from_numpyro as from_numpyro
    from samplekit.targets.paths import noise_path as noise_path
    from samplekit.targets.paths import tempered_path as tempered_path

_HOME = {
    "diagnose": "samplekit.diagnostics.diagnose",
    "energy_distance": "samplekit.diagnostics.distances",
    "sliced_wasserstein": "samplekit.diagnostics.distances",
    "efficiency": "samplekit.diagnostics.efficiency",
    "closed_loop_work": "samplekit.diagnostics.gradient",
    "nested_rhat": "samplekit.diagnostics.nested",
    "plot_mixing": "samplekit.diagnostics.plot_mixing",
    "plot_target": "samplekit.diagnostics.plot_target",
    "stein_discrepancy": "samplekit.diagnostics.stein",
    "report": "samplekit.reporting.api",
    "ScoreCUSUM": "samplekit.estimators.change",
    "compare": "samplekit.estimators.comparison",
    "ConditionalFamily": "samplekit.estimators.conditional",
    "EnergyNetwork": "samplekit.estimators.energy_network",
    "ExponentialFamily": "samplekit.estimators.exponential_family",
    "hyvarinen_score": "samplekit.estimators.hyvarinen",
    "KernelExponentialFamily": "samplekit.estimators.kernel_family",
    "noise_levels": "samplekit.estimators.noise_levels",
    "NoiseConditionalScoreNetwork": "samplekit.estimators.noise_network",
    "ScoreNetwork": "samplekit.estimators.score_network",
    "BernoulliRBM": "samplekit.estimators.rbm",
    "GaussBernoulliRBM": "samplekit.estimators.rbm",
    "Gibbs": "samplekit.kernels.gibbs",
    "HMC": "samplekit.kernels.hamiltonian",
    "MALA": "samplekit.kernels.langevin",
    "Barker": "samplekit.kernels.langevin",
    "Langevin": "samplekit.kernels.langevin",
    "MCLMC": "samplekit.kernels.mclmc",
    "Independence": "samplekit.kernels.metropolis",
    "MetropolisHastings": "samplekit.kernels.metropolis",
    "RandomWalk": "samplekit.kernels.metropolis",
    "NUTS": "samplekit.kernels.nuts",
    "ScoreMALA": "samplekit.kernels.score_mala",
    "kernel_of": "samplekit.sampling.api",
    "resume": "samplekit.sampling.api",
    "sample": "samplekit.sampling.api",
    "predictive": "samplekit.sampling.predictive",
    "Converged": "samplekit.sampling.stop",
    "product": "samplekit.targets.combinators",
    "smoothed": "samplekit.targets.combinators",
    "tempered": "samplekit.targets.combinators",
    "from_energy": "samplekit.targets.density",
    "from_log_density": "samplekit.targets.density",
    "from_score": "samplekit.targets.density",
    "from_numpyro": "samplekit.targets.numpyro",
    "Cycle": "samplekit.kernels.cycle",
    "GibbsWithGradients": "samplekit.kernels.discrete",
    "Tempering": "samplekit.kernels.tempering",
    "anneal": "samplekit.sampling.anneal",
    "noise_path": "samplekit.targets.paths",
    "tempered_path": "samplekit.targets.paths",
}
_MODULES = {
    "diffusion": "samplekit.diffusion",
    "errors": "samplekit.core.errors",
    "families": "samplekit.estimators.families",
    "losses": "samplekit.losses",
    "networks": "samplekit.networks",
    "targets": "samplekit.targets",
    "testing": "samplekit.testing",
}

__all__ = [*_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(_MODULES[name])
    elif name == "__version__":
        from importlib.metadata import version

        value = version("samplekit")
    else:
        raise AttributeError(f"module 'samplekit' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
