"""A sampler with its program compiled: `python -m tests.bench.workers.warm CONTENDER TARGET`."""

import sys

import jax
import numpy as np

from tests.bench import targets
from tests.bench.serve import serve

WARMUP = DRAWS = 1000
CHAINS = 4
# Leapfrog steps of BlackJAX's HMC, and MCLMC's steps and how many of them make a draw (BENCH.md).
LEAPFROGS = {"schools": 10, "logreg25": 10, "banana2": 20, "gauss100": 64, "funnel10": 20}
MCLMC_STEPS, MCLMC_THIN = 20_000, 10


def samplekit(name, kernel="NUTS"):
    import samplekit as sk

    dim, log_density = targets.build(name)
    target = sk.from_log_density(log_density, dim)

    def sample(seed, *, keep_warmup=False):
        return sk.sample(
            target,
            getattr(sk, kernel)(),
            warmup=WARMUP,
            draws=DRAWS,
            chains=CHAINS,
            seed=seed,
            keep_warmup=keep_warmup,
            cache=False,
            progress=False,
        )

    sample(0)

    def run(number):
        tree = sample(number + 1)

        def after():
            longer = sample(number + 1, keep_warmup=True)  # the same draws, and those of warm-up
            steps = [longer[g]["n_steps"] for g in ("warmup_sample_stats", "sample_stats")]
            same = np.array_equal(longer["posterior"]["x"], tree["posterior"]["x"])
            return {
                "gradients": sum(int(s.sum()) for s in steps),
                "draw_gradients": int(steps[1].sum()),
                "same_draws": bool(same),
                **targets.quality(tree["posterior"]["x"].values),
            }

        return after

    return run, {}


def blackjax(name, kind="nuts"):
    """BlackJAX's NUTS, or its HMC of a fixed length, after its window adaptation."""
    import blackjax

    dim, log_density = targets.build(name)
    algorithm = getattr(blackjax, kind)
    length = {"num_integration_steps": LEAPFROGS[name]} if kind == "hmc" else {}

    def chain(key, x):
        first, second = jax.random.split(key)
        adapt = blackjax.window_adaptation(algorithm, log_density, **length)
        (state, tuned), tuning = adapt.run(first, x, num_steps=WARMUP)
        kernel = algorithm(log_density, **tuned)

        def step(state, k):
            state, info = kernel.step(k, state)
            return state, (state.position, info.num_integration_steps)

        _, (draws, steps) = jax.lax.scan(step, state, jax.random.split(second, DRAWS))
        return draws, (tuning.info.num_integration_steps.sum(), steps.sum())

    return vmapped(chain, dim)


def blackjax_mclmc(name):
    """BlackJAX's unadjusted MCLMC after its own tuner, as its users run it."""
    import blackjax

    dim, log_density = targets.build(name)

    def chain(key, x):
        start, first, second = jax.random.split(key, 3)
        tune = blackjax.mclmc_find_L_and_step_size
        state, tuned, steps = tune(
            mclmc_kernel=blackjax.mcmc.mclmc.build_kernel(),
            logdensity_fn=log_density,
            num_steps=MCLMC_STEPS,
            state=blackjax.mcmc.mclmc.init(x, log_density, start),
            rng_key=first,
        )
        kernel = blackjax.mclmc(log_density, **tuned._asdict())

        def draw(state, key):
            keys = jax.random.split(key, MCLMC_THIN)
            state = jax.lax.scan(lambda s, k: (kernel.step(k, s)[0], None), state, keys)[0]
            return state, state.position

        draws = jax.lax.scan(draw, state, jax.random.split(second, MCLMC_STEPS // MCLMC_THIN))[1]
        # Its integrator takes two gradients a step.
        return draws, (2 * jax.numpy.asarray(steps), jax.numpy.asarray(2 * MCLMC_STEPS))

    return vmapped(chain, dim)


def vmapped(chain, dim):
    """Time one jitted program of all chains; each returns draws and gradients of both phases."""
    begin = jax.numpy.asarray(targets.starts(dim, CHAINS))
    program = jax.jit(lambda key: jax.vmap(chain)(jax.random.split(key, CHAINS), begin))
    jax.block_until_ready(program(jax.random.key(0)))

    def run(number):
        draws, (tuning, steps) = jax.device_get(program(jax.random.key(number + 1)))
        return lambda: {
            "gradients": int(tuning.sum() + steps.sum()),
            "draw_gradients": int(steps.sum()),
            **targets.quality(draws),
        }

    return run, {}


def numpyro(name):
    from numpyro.infer import MCMC, NUTS

    dim, log_density = targets.build(name)
    begin = jax.numpy.asarray(targets.starts(dim, CHAINS))
    mcmc = MCMC(
        NUTS(potential_fn=lambda x: -log_density(x)),
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )

    def sample(seed):
        fields = ("num_steps",)
        mcmc.run(jax.random.key(seed), init_params=begin, extra_fields=fields)
        return np.asarray(mcmc.get_samples(group_by_chain=True))

    sample(0)

    def run(number):
        draws = sample(number + 1)
        steps = int(np.asarray(mcmc.get_extra_fields()["num_steps"]).sum())
        return lambda: {"draw_gradients": steps, **targets.quality(draws)}

    return run, {}


if __name__ == "__main__":
    contender = {
        "samplekit": samplekit,
        "samplekit-hmc": lambda name: samplekit(name, "HMC"),
        "blackjax": blackjax,
        "blackjax-hmc": lambda name: blackjax(name, "hmc"),
        "blackjax-mclmc": blackjax_mclmc,
        "numpyro": numpyro,
    }[sys.argv[1]]
    serve(lambda: contender(sys.argv[2]))
