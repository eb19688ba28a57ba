"""Posteriors with published moments: means within 4 Monte Carlo errors, sds within 10 %."""

import importlib.util
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import samplekit as sk
from samplekit.sampling.convergence import ess_bulk, rank_rhat

pytestmark = pytest.mark.statistical
FOLDER = Path(__file__).parent / "reference"
NAMES = sorted(p.name for p in FOLDER.iterdir() if p.is_dir())
# Three in the default run: a hierarchy, an ill-conditioned regression, simplices and an order.
QUICK = ("eight_schools_noncentered", "kidscore_interaction", "hmm_example")
# The centred hierarchy is a funnel: it needs small steps, and many draws for its slow mixing.
SPECIAL = {"eight_schools_centered": (sk.NUTS(target_accept=0.99), 10_000)}


def load(name: str):
    """Return the model, its data and the published truth."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / name / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    data = json.loads((FOLDER / name / "data.json").read_text())
    data = {k: np.asarray(v) if isinstance(v, list) else v for k, v in data.items()}
    return module.model, data, json.loads((FOLDER / name / "truth.json").read_text())["params"]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in NAMES]
)
def test_published_moments(name: str) -> None:
    with jax.enable_x64(True):
        model, data, truth = load(name)
        kernel, draws = SPECIAL.get(name, (None, 1000))
        run = sk.sample(sk.from_numpyro(model, **data), kernel, draws=draws, progress=False)
    for variable, known in truth.items():
        x = run["posterior"][variable].values
        x = x.reshape(*x.shape[:2], -1)
        mean, sd = x.mean((0, 1)), x.std((0, 1))
        error = np.hypot(sd / np.sqrt(ess_bulk(x)), np.ravel(known["mcse_mean"]))
        z = (mean - np.ravel(known["mean"])) / error
        assert np.all(np.abs(z) < 4), (variable, z)
        assert np.all(np.abs(sd / np.ravel(known["sd"]) - 1) < 0.1), variable
        assert np.all(rank_rhat(x) < 1.02), variable
