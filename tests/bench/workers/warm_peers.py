"""Samplers of other languages on the same JAX density: `... warm_peers nutpie|emcee TARGET`."""

import os
import sys

import jax
import jax.numpy as jnp
import numpy as np

from tests.bench import targets
from tests.bench.serve import serve

WARMUP = DRAWS = 1000
CHAINS = 4
# emcee's steps: as many evaluations as a NUTS run has gradients, or more.
BURN_IN, STEPS, THIN = 600, 3000, 5


def nutpie(name):
    import nutpie
    from nutpie.compiled_pyfunc import from_pyfunc

    dim, log_density = targets.build(name)
    both = jax.jit(jax.value_and_grad(log_density))
    starts = targets.starts(dim, CHAINS)
    jax.block_until_ready(both(starts[0]))

    def make_density():
        def density(x, **_):
            value, gradient = both(x.astype(np.float32))
            return float(value), np.asarray(gradient).astype(np.float64)

        return density

    def make_expand(*_):
        return lambda x, **_: {"x": np.asarray(x, np.float64)}

    model = from_pyfunc(
        dim,
        make_density,
        make_expand,
        [np.dtype("float64")],
        [(dim,)],
        ["x"],
        make_initial_point_fn=lambda seed: np.asarray(starts[(seed or 0) % CHAINS], np.float64),
    )

    def run(number):
        tree = nutpie.sample(
            model,
            draws=DRAWS,
            tune=WARMUP,
            chains=CHAINS,
            cores=len(os.sched_getaffinity(0)),
            seed=number + 1,
            progress_bar=False,
            adaptation="low_rank" if name == "gauss100" else "diag",
        )

        def after():
            groups = [g for g in ("warmup_sample_stats", "sample_stats") if g in tree]
            steps = [int(tree[g]["n_steps"].sum()) for g in groups]
            counts = {"gradients": sum(steps), "draw_gradients": steps[-1]}
            return {**counts, **targets.quality(tree["posterior"]["x"].values)}

        return after

    return run, {}


def emcee(name):
    import emcee

    dim, log_density = targets.build(name)
    walkers = max(32, 2 * dim + 2)
    walkers += walkers % 2
    densities = jax.jit(jax.vmap(log_density))
    begin = np.random.default_rng(5).normal(size=(walkers, dim))
    for count in (walkers // 2, walkers):
        jax.block_until_ready(densities(jnp.zeros((count, dim))))

    def evaluate(x):
        return np.asarray(densities(jnp.asarray(x, jnp.float32)), np.float64)

    def run(number):
        np.random.seed(number)  # noqa: NPY002  # emcee draws from the global generator
        sampler = emcee.EnsembleSampler(walkers, dim, evaluate, vectorize=True)
        state = sampler.run_mcmc(begin, BURN_IN)
        sampler.reset()
        sampler.run_mcmc(state, STEPS)
        draws = np.swapaxes(sampler.get_chain()[::THIN], 0, 1)
        return lambda: {"gradients": 0, **targets.quality(draws)}

    return run, {}


if __name__ == "__main__":
    serve(lambda: {"nutpie": nutpie, "emcee": emcee}[sys.argv[1]](sys.argv[2]))
