"""1, 2, 4 and 8 devices: the same numbers, bit for bit where chains are mapped, else to rounding.

Run as a program, this file computes them, on eight virtual devices.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
COUNTS = (1, 2, 4, 8)


def compute():
    """Return, for each part of samplekit, what it gives on each number of devices."""
    import samplekit as sk
    from samplekit import diffusion

    target = sk.targets.gaussian(2, covariance=np.array([[1.0, 0.6], [0.6, 1.0]], np.float32))
    family = sk.targets.noised_mixture([1, 4], [[-5.0, -5.0], [5.0, 5.0]])
    path = sk.noise_path(family, np.geomspace(20, 0.1, 10))
    process, rows = diffusion.VE(0.01, 30.0), np.random.default_rng(0).gamma(3.0, size=(4000, 1))
    quiet = {"progress": False}

    def mapped(n):
        kernel = sk.RandomWalk()
        return sk.sample(target, kernel, chains=8, warmup=50, draws=20, devices=n, **quiet)

    def batch(n):
        kernel = sk.MALA(0.8)
        return sk.sample(target, kernel, chains=24, warmup=0, draws=10, devices=n, **quiet)

    def anneal(n):
        return sk.anneal(path, particles=48, steps=5, devices=n, **quiet)

    def reverse(n):
        return diffusion.reverse(process, family, steps=40, particles=48, devices=n, **quiet)

    def flow(n):
        return diffusion.flow(process, family, solver="heun", particles=48, devices=n)

    samplers = {f.__name__: f for f in (mapped, batch, anneal, reverse, flow)}
    found = {
        name: [np.asarray(f(n)["posterior"]["x"]).tolist() for n in COUNTS]
        for name, f in samplers.items()
    }
    found["fit"] = [sk.families.gamma().fit(rows, devices=n).theta_.tolist() for n in COUNTS]
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(compute()))
    sys.exit()


@pytest.mark.slow
@pytest.mark.multidevice
def test_the_number_of_devices_changes_nothing():
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stderr
    for name, (one, *others) in json.loads(done.stdout).items():
        for other in others:
            if name == "mapped":
                np.testing.assert_array_equal(other, one)
            # Sums in float64 in another order; float32 rounding over some ten to fifty steps.
            tolerance = 1e-10 if name == "fit" else 1e-3
            np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance, err_msg=name)
