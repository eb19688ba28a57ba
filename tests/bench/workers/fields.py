"""Sweeps of an Ising lattice: `python -m tests.bench.workers.fields CONTENDER SIDE SWEEPS`.

The floor draws one uniform number a site and sweep and compares it with the chance that the
neighbors give, one color after the other, in one jitted loop: no more than a checkerboard needs.
"""

import math
import random
import sys

import jax
import jax.numpy as jnp
import numpy as np

from tests.bench.serve import serve

COUPLING = 0.4


def _metrics(updates, x):
    return {"updates": updates, "spins": sorted(set(np.unique(x).tolist()))}


def _jitted(sweep, x, sweeps):
    """Time a jitted loop of sweeps."""

    @jax.jit
    def program(key, x):
        def body(i, x):
            return sweep(jax.random.fold_in(key, i), x)

        return jax.lax.fori_loop(0, sweeps, body, x)

    jax.block_until_ready(program(jax.random.key(0), x))

    def run(number):
        out = np.asarray(program(jax.random.key(number + 1), x))
        return lambda: _metrics(sweeps * x.size, out)

    return run, {}


def floor(side, sweeps):
    """Return the bare checkerboard update."""
    black = np.indices((side, side)).sum(axis=0) % 2 == 0

    def sweep(key, x):
        u = jax.random.uniform(key, (side, side))
        for color in (black, ~black):
            near = sum(jnp.roll(x, shift, axis) for axis in (0, 1) for shift in (1, -1))
            spin = jnp.where(u < jax.nn.sigmoid(2 * COUPLING * near), 1.0, -1.0)
            x = jnp.where(color, spin, x)
        return x

    return _jitted(sweep, jnp.ones((side, side), jnp.float32), sweeps)


def sweep(side, sweeps):
    """Return the target's own sweep, without the sampling loop."""
    import samplekit as sk

    field = sk.targets.ising((side, side), COUPLING)
    return _jitted(field.gibbs, jnp.ones((side, side), jnp.int8), sweeps)


def samplekit(side, sweeps, chains):
    """Return `sk.sample`, its energy at every sweep included, of which two draws are stored."""
    import samplekit as sk
    from samplekit.kernels.gibbs import Gibbs

    field = sk.targets.ising((side, side), COUPLING)

    def sample(seed):
        return sk.sample(
            field,
            Gibbs(),
            warmup=0,
            draws=2,
            thin=sweeps // 2,
            chains=chains,
            seed=seed,
            cache=False,
            progress=False,
        )

    sample(0)

    def run(number):
        x = sample(number + 1)["posterior"]["x"].values
        return lambda: _metrics(sweeps // 2 * 2 * chains * side**2, x)

    return run, {}


def numpy_loop(side, sweeps):
    """Return the loop over sites that everyone writes first, on a NumPy array."""
    draw = random.Random(0).random

    def run(_):
        x = np.ones((side, side), np.int8)
        for _ in range(sweeps):
            for i in range(side):
                for j in range(side):
                    near = (
                        int(x[i - 1, j])
                        + int(x[(i + 1) % side, j])
                        + int(x[i, j - 1])
                        + int(x[i, (j + 1) % side])
                    )
                    x[i, j] = 1 if draw() < 1 / (1 + math.exp(-2 * COUPLING * near)) else -1
        return lambda: _metrics(sweeps * x.size, x)

    return run, {}


if __name__ == "__main__":
    who, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    makers = {
        "numpy": lambda: numpy_loop(size, count),
        "floor": lambda: floor(size, count),
        "sweep": lambda: sweep(size, count),
        "samplekit": lambda: samplekit(size, count, 1),
        "samplekit-4": lambda: samplekit(size, count, 4),
    }
    serve(makers[who])
