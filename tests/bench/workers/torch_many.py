"""Many chains in torchebm: `... torch_many KERNEL ENERGY CHAINS STEPS`, Python 3.11."""

import os
import sys
import time

import numpy as np
import torch
from torch.nn import functional

from tests.bench import energies
from tests.bench.serve import serve


def make_energy(name):
    """Return the batched energy."""
    if name == "mixture":
        mu = torch.tensor(energies.means())
        return lambda x: -torch.logsumexp(-2.0 * ((x[:, None, :] - mu) ** 2).sum(-1), -1)
    layers = [torch.tensor(w) for w in energies.weights()]

    def network(x):
        h = functional.silu(functional.silu(x @ layers[0]) @ layers[1])
        return (h @ layers[2])[:, 0] + 0.5 * (x * x).sum(-1)

    return network


def make_sampler(kernel, energy):
    """Return torchebm's sampler for an energy."""
    from torchebm.core import BaseModel
    from torchebm.samplers import HamiltonianMonteCarlo, LangevinDynamics

    class Model(BaseModel):
        def forward(self, x):
            return energy(x)

    if kernel == "langevin":
        step = energies.LANGEVIN_STEP**2 / 2
        return LangevinDynamics(model=Model(), step_size=step, noise_scale=1.0)
    return HamiltonianMonteCarlo(
        model=Model(), step_size=energies.HMC_STEP, n_leapfrog_steps=energies.LEAPFROGS
    )


def contender(kernel, name, chains, steps):
    sampler = make_sampler(kernel, make_energy(name))
    x = torch.rand(chains, energies.DIMS[name]) * 4 - 2

    def seconds(threads):
        torch.set_num_threads(threads)
        sampler.sample(x=x.clone(), n_steps=2)
        since = time.perf_counter()
        sampler.sample(x=x.clone(), n_steps=5)
        return time.perf_counter() - since

    # Small batches are faster on one thread, and nothing else is fair to torch.
    threads = min((1, os.cpu_count() or 1), key=seconds)
    torch.set_num_threads(threads)

    def run(number):
        torch.manual_seed(number)
        out = sampler.sample(x=x.clone(), n_steps=steps).detach().numpy()
        return lambda: {
            "steps": steps,
            "finite": bool(np.isfinite(out).all()),
            "spread": float(out.std()),
        }

    return run, {"threads": threads}


if __name__ == "__main__":
    what, which = sys.argv[1:3]
    numbers = [int(a) for a in sys.argv[3:5]]
    serve(lambda: contender(what, which, *numbers))
