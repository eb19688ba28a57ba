"""Every kernel that tunes itself, on every target: `sk.sample` gets the moments right."""

import jax
import numpy as np
import pytest

import samplekit as sk
from samplekit.testing import assert_mean
from tests.kernels.table import ROWS, TARGETS

pytestmark = pytest.mark.statistical

TUNED = {name: row for name, row in ROWS.items() if row.tuned is not None}
# The default run: one target a kernel, chosen so that each target is met; `make test-slow`: all.
QUICK = dict(
    zip(
        TUNED,
        ["gaussian", "mixture", "double_well", "banana", "ring", "student_t", "funnel"] * 2,
        strict=False,  # more targets than kernels: the rest is not needed
    )
)
# A gradient step gets stuck where a light tail is steep (MALA, FORMULAS §12.8) or a neck is narrow:
# these pairs mix too slowly at this size for the resolution that the test demands.
SLOW_MIXING = {("random_walk", "ring"), ("random_walk", "banana"), ("random_walk", "funnel")}
PAIRS = [
    pytest.param(kernel, name, marks=() if QUICK[kernel] == name else pytest.mark.slow)
    for kernel in TUNED
    for name in TARGETS
    if (kernel, name) not in SLOW_MIXING
]


@pytest.mark.parametrize(("kernel", "name"), PAIRS)
def test_moments(kernel: str, name: str, seed: int) -> None:
    target, make = TARGETS[name][0](), TUNED[kernel].tuned
    assert make is not None
    # The tail of the banana is visited seldom by small steps: more of them, to resolve its square.
    thin = 20 if (kernel, name) == ("mala_0.3", "banana") else 5
    run = sk.sample(target, make(), chains=8, draws=4000, thin=thin, seed=seed, progress=False)
    x = run["posterior"]["x"].values
    sd = np.sqrt(np.asarray(target.variance))
    assert_mean(x, np.asarray(target.mean), resolves=0.25 * sd, name=f"{kernel} on {name}, x")
    if not target.heavy_tailed:
        square = (x - np.asarray(target.mean)) ** 2
        variance = np.asarray(target.variance)
        assert_mean(square, variance, resolves=0.5 * variance, name=f"{kernel} on {name}, x²")
    for label, (fn, value) in target.expectations.items():
        values = np.asarray(jax.vmap(jax.vmap(fn))(x))
        assert_mean(values, value, resolves=0.5 * values.std(), name=f"{kernel} on {name}, {label}")


def test_bimodal_weights_by_random_walk(seed: int) -> None:
    """The lecture's density: .6 of the mass left of the saddle's mode assignment."""
    target = sk.targets.bimodal()
    run = sk.sample(target, sk.RandomWalk(), chains=8, draws=20_000, seed=seed, progress=False)
    x = run["posterior"]["x"].values
    assert_mean(x[..., 0], float(np.ravel(target.mean)[0]), resolves=0.4)
