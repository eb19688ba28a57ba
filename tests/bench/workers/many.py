"""Many chains in JAX: `python -m tests.bench.workers.many CONTENDER KERNEL ENERGY CHAINS STEPS`.

The floor evaluates the same gradients and draws the same noise from the same keys as samplekit's
kernel, and does nothing else; "hand" is the whole kernel written out for this one target.
"""

import functools
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from tests.bench import energies
from tests.bench.serve import serve

ETA, HMC_ETA, LEAPFROGS = energies.LANGEVIN_STEP, energies.HMC_STEP, energies.LEAPFROGS


def samplekit(kernel, energy, chains, steps, *, every):
    """Time `sk.sample`; `every` stores each draw, otherwise only two are stored."""
    import samplekit as sk

    moves = {
        "langevin": lambda: sk.Langevin(ETA),
        "mala": lambda: sk.MALA(ETA, metric=None),
        "hmc": lambda: sk.HMC(HMC_ETA, leapfrogs=LEAPFROGS, metric=None),
    }[kernel]()
    target = sk.from_log_density(energies.jax_log_density(energy), energies.DIMS[energy])

    def sample(seed, draws, thin):
        return sk.sample(
            target,
            moves,
            warmup=0,
            draws=draws,
            thin=thin,
            chains=chains,
            seed=seed,
            stats=(),
            cache=False,
            progress=False,
        )

    draws, thin = (steps, 1) if every else (2, steps // 2)
    sample(0, draws, thin)
    since = time.perf_counter()
    sample(0, 1, 1)  # what a call costs before it steps; the same program
    call = time.perf_counter() - since

    def run(number):
        tree = sample(number + 1, draws, thin)
        return lambda: _metrics(draws * thin, tree["posterior"]["x"].values)

    return run, {"call_s": call}


def _metrics(steps, x):
    return {"steps": steps, "finite": bool(np.isfinite(x).all()), "spread": float(x[:, -1].std())}


def by_hand(scan, chains, steps, energy):
    """Time a jitted scan that was written for this benchmark."""
    x = jax.random.uniform(jax.random.key(9), (chains, energies.DIMS[energy]), minval=-2, maxval=2)
    program = jax.jit(functools.partial(scan, steps=steps))
    jax.block_until_ready(program(jax.random.key(0), x))

    def run(number):
        out = np.asarray(program(jax.random.key(number + 1), x)[0])
        return lambda: _metrics(steps, out[:, None])

    return run, {}


def noise_of(kernel, key, shape):
    """Draw what samplekit's kernel draws, from the same key: normals, thresholds, a jitter."""
    rows, dim = shape
    extra = {"langevin": 0, "mala": 1, "hmc": 2}[kernel]
    u = jax.random.uniform(key, (rows, dim + extra), minval=np.nextafter(np.float32(-1), 0))
    return jax.lax.erf_inv(u[:, :dim]) * 2**0.5, jnp.log(0.5 + 0.5 * u[:, dim]) if extra else None


def floor(kernel, energy):
    """Return the scan of gradients and noise."""
    both = jax.vmap(jax.value_and_grad(energies.jax_log_density(energy)))
    only = jax.vmap(jax.grad(energies.jax_log_density(energy)))

    def langevin(i, loop, key):
        x, g, rest = loop
        z, _ = noise_of(kernel, jax.random.fold_in(key, i), x.shape)
        x = x + 0.5 * ETA**2 * g + ETA * z
        return x, only(x), rest

    def mala(i, loop, key):
        x, g, rest = loop
        z, log_u = noise_of(kernel, jax.random.fold_in(key, i), x.shape)
        x = x + 0.5 * ETA**2 * g + ETA * z
        value, g = both(x)
        return x, g, rest + value + log_u

    def hmc(i, loop, key):
        x, g, rest = loop
        v, log_u = noise_of(kernel, jax.random.fold_in(key, i), x.shape)

        def leapfrog(_, path):
            x, v, g, value = path
            v = v + HMC_ETA * g
            x = x + HMC_ETA * v
            value, g = both(x)
            return x, v, g, value

        x, v, g, value = jax.lax.fori_loop(0, LEAPFROGS, leapfrog, (x, v, g, rest))
        return x, g, rest + value + log_u

    step = {"langevin": langevin, "mala": mala, "hmc": hmc}[kernel]

    def scan(key, x, steps):
        loop = (x, only(x), jnp.zeros(x.shape[0]))
        return jax.lax.fori_loop(0, steps, lambda i, c: step(i, c, key), loop)

    return scan


def hand(kernel, energy):
    """Return the scan of the whole kernel, acceptance included."""
    both = jax.vmap(jax.value_and_grad(energies.jax_log_density(energy)))
    eta, count = (HMC_ETA, LEAPFROGS) if kernel == "hmc" else (ETA, 1)

    def step(i, state, key):
        v0, log_u = noise_of(kernel, jax.random.fold_in(key, i), state[0].shape)

        def leapfrog(_, path):
            x, v, _, g = path
            v = v + 0.5 * eta * g
            x = x + eta * v
            value, g = both(x)
            return x, v + 0.5 * eta * g, value, g

        start = (state[0], v0, *state[1:])
        x, v, value, g = jax.lax.fori_loop(0, count, leapfrog, start)
        kinetic = 0.5 * (jnp.sum(v0 * v0, -1) - jnp.sum(v * v, -1))
        accept = log_u <= value - state[1] + kinetic
        new = (x, value, g)
        return tuple(
            jnp.where(accept.reshape((-1,) + (1,) * (a.ndim - 1)), a, b)
            for a, b in zip(new, state, strict=True)
        )

    def scan(key, x, steps):
        return jax.lax.fori_loop(0, steps, lambda i, c: step(i, c, key), (x, *both(x)))

    return scan


def blackjax(kernel, energy):
    """Return the scan of BlackJAX's kernel under vmap, a key for each chain and step."""
    import blackjax

    log_density, step_size = energies.jax_log_density(energy), 0.5 * ETA**2  # η²/2 is theirs
    if kernel == "langevin":
        algorithm = blackjax.sgld(lambda x, _: jax.grad(log_density)(x))
    elif kernel == "mala":
        algorithm = blackjax.mala(log_density, step_size)
    else:
        ones = jnp.ones(energies.DIMS[energy])
        algorithm = blackjax.hmc(log_density, HMC_ETA, ones, LEAPFROGS)

    def move(key, state):
        if kernel == "langevin":
            return algorithm.step(key, state, None, step_size)
        return algorithm.step(key, state)[0]

    def scan(key, x, steps):
        def step(i, state):
            keys = jax.random.split(jax.random.fold_in(key, i), x.shape[0])
            return jax.vmap(move)(keys, state)

        begin = x if kernel == "langevin" else jax.vmap(algorithm.init)(x)
        end = jax.lax.fori_loop(0, steps, step, begin)
        return (end if kernel == "langevin" else end.position,)

    return scan


if __name__ == "__main__":
    who, what, name = sys.argv[1:4]
    count, length = int(sys.argv[4]), int(sys.argv[5])
    if who.startswith("samplekit"):
        stores = who == "samplekit-every"
        serve(lambda: samplekit(what, name, count, length, every=stores))
    else:
        written = {"floor": floor, "hand": hand, "blackjax": blackjax}[who](what, name)
        serve(lambda: by_hand(written, count, length, name))
