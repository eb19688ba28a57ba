"""A fresh process to a finished run: `python -m tests.bench.workers.cold CONTENDER MODEL`.

Says its phases when the draws are in host memory. Imports are those the contender needs.
"""

import sys
import time

from tests.bench.serve import open_stdout

WARMUP = DRAWS = 1000
CHAINS = 4


def bare(name):
    """Import JAX and run one small jitted scan: no JAX program starts faster."""
    import jax
    import numpy as np

    del name
    imported = time.perf_counter()
    program = jax.jit(
        lambda key: jax.lax.scan(
            lambda x, k: (0.9 * x + jax.random.normal(k, x.shape),) * 2,
            jax.numpy.zeros((CHAINS, 10)),
            jax.random.split(key, DRAWS),
        )[1]
    )
    return imported, np.asarray(program(jax.random.key(0))).shape


def numpyro(name, method):
    import jax
    import numpy as np
    from numpyro.infer import MCMC, NUTS

    from tests.bench import models

    imported = time.perf_counter()
    model, data = models.build(name)
    mcmc = MCMC(
        NUTS(model),
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method=method,
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), *data)
    draws = {k: np.asarray(v) for k, v in mcmc.get_samples(group_by_chain=True).items()}
    return imported, {k: v.shape for k, v in draws.items()}


def samplekit(name, cache, kernel=None):
    import samplekit as sk
    from tests.bench import models

    imported = time.perf_counter()
    model, data = models.build(name)
    run = sk.sample(
        sk.from_numpyro(model, *data),
        kernel and getattr(sk, kernel)(),
        warmup=WARMUP,
        draws=DRAWS,
        chains=CHAINS,
        cache=cache,
        progress=False,
    )
    return imported, {k: v.shape for k, v in run["posterior"].data_vars.items()}


def blackjax_nuts(name):
    import blackjax
    import jax
    import numpy as np
    from numpyro.infer.util import initialize_model

    from tests.bench import models

    imported = time.perf_counter()
    model, data = models.build(name)
    keys = jax.random.split(jax.random.key(0), CHAINS)
    start, potential, postprocess, _ = initialize_model(keys, model, model_args=data)

    def log_density(z):
        return -potential(z)

    def chain(key, x):
        first, second = jax.random.split(key)
        adapt = blackjax.window_adaptation(blackjax.nuts, log_density)
        (state, tuned), _ = adapt.run(first, x, num_steps=WARMUP)
        kernel = blackjax.nuts(log_density, **tuned)

        def step(state, k):
            state, _ = kernel.step(k, state)
            return state, state.position

        _, draws = jax.lax.scan(step, state, jax.random.split(second, DRAWS))
        return jax.vmap(postprocess)(draws)

    draws = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(1), CHAINS), start.z)
    return imported, {k: np.asarray(v).shape for k, v in draws.items()}


CONTENDERS = {
    "bare": bare,
    "numpyro-vectorized": lambda name: numpyro(name, "vectorized"),
    "numpyro-sequential": lambda name: numpyro(name, "sequential"),
    "samplekit": lambda name: samplekit(name, cache=False),
    "samplekit-cached": lambda name: samplekit(name, cache=True),
    "samplekit-nuts": lambda name: samplekit(name, cache=False, kernel="NUTS"),
    "blackjax": blackjax_nuts,
}

if __name__ == "__main__":
    begun = time.perf_counter()
    say = open_stdout()
    done_imports, shapes = CONTENDERS[sys.argv[1]](sys.argv[2])
    ended = time.perf_counter()
    facts = {"import_s": done_imports - begun, "work_s": ended - done_imports}
    # Processor time is the steadier number on a machine that is not ours alone.
    say({**facts, "cpu_s": time.process_time(), "shapes": str(shapes)})
