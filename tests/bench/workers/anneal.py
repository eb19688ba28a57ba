"""Annealed Langevin in JAX: `python -m tests.bench.workers.anneal CONTENDER N LEVELS STEPS`.

The score is −x / (1 + σ²) plus a network divided by σ: the shape of a trained one. `first` is a
fresh process up to the end of a path of single steps.
"""

import dataclasses
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from tests.bench import scores
from tests.bench.serve import open_stdout, serve


def network_score(layers, sigma, x):
    first, second, third, level = layers
    h = jax.nn.silu(x @ first + jnp.log(sigma) * level[0])
    h = jax.nn.silu(h @ second)
    return 0.1 * (h @ third) / sigma - x / (1 + sigma**2)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Target:
    layers: list
    sigma: jax.Array

    def score(self, x):
        return network_score(self.layers, self.sigma, x)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Family:
    layers: list

    def at(self, sigma):
        return Target(self.layers, sigma)


def start(key, n):
    return scores.FIRST * jax.random.normal(key, (n, 2))


def metrics(x):
    return {"finite": bool(np.isfinite(x).all()), "spread": float(x.std())}


def samplekit(particles, levels, steps):
    """Time `sk.anneal`."""
    from samplekit.kernels.langevin import Langevin
    from samplekit.sampling.anneal import anneal
    from samplekit.targets.paths import noise_path

    family = Family([jnp.asarray(w) for w in scores.weights()])
    path = noise_path(family, scores.levels(levels), start=start)

    def go(seed):
        return anneal(
            path,
            Langevin(scores.STEP),
            steps=steps,
            particles=particles,
            seed=seed,
            denoise=False,
            cache=False,
            progress=False,
        )

    go(0)

    def run(number):
        tree = go(number + 1)
        return lambda: metrics(tree["posterior"]["x"].values)

    return run, {}


def floor(particles, levels, steps):
    """Time the loop of scores and noise."""
    layers = [jnp.asarray(w) for w in scores.weights()]
    sigmas = jnp.asarray(scores.levels(levels), jnp.float32)

    @jax.jit
    def program(key):
        start_key, step_key = jax.random.split(key)

        def level(i, x):
            sigma = sigmas[i]
            eta = scores.STEP * sigma / sigmas[-1]
            score = jax.vmap(lambda x: network_score(layers, sigma, x))

            def step(j, x):
                z = jax.random.normal(jax.random.fold_in(step_key, i * steps + j), x.shape)
                return x + 0.5 * eta**2 * score(x) + eta * z

            return jax.lax.fori_loop(0, steps, step, x)

        return jax.lax.fori_loop(0, levels, level, start(start_key, particles))

    jax.block_until_ready(program(jax.random.key(0)))

    def run(number):
        x = np.asarray(program(jax.random.key(number + 1)))
        return lambda: metrics(x)

    return run, {}


def first(particles, levels, _):
    """Say how long after the imports one step a level is taken, nothing being cached."""
    say = open_stdout()
    import arviz  # noqa: F401  what the DataTree needs

    from samplekit.kernels.langevin import Langevin
    from samplekit.sampling.anneal import anneal
    from samplekit.targets.paths import noise_path

    jax.config.update("jax_enable_compilation_cache", False)
    family = Family([jax.device_put(w) for w in scores.weights()])
    imported = time.perf_counter()
    path = noise_path(family, scores.levels(levels), start=start)
    anneal(path, Langevin(scores.STEP), steps=1, particles=particles, denoise=False, progress=False)
    say({"first_s": time.perf_counter() - imported})


if __name__ == "__main__":
    numbers = [int(a) for a in sys.argv[2:5]]
    if sys.argv[1] == "first":
        first(*numbers)
        sys.exit()
    contender = {"samplekit": samplekit, "floor": floor}[sys.argv[1]]
    serve(lambda: contender(*numbers))
