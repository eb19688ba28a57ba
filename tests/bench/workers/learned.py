"""Denoising training in JAX: `python -m tests.bench.workers.learned CONTENDER`.

A 2-128-128-2 network, batches of 512, noise drawn in the loss, Adam. `first` is a fresh process up
to its first batch.
"""

import sys
import time

import numpy as np

from tests.bench.serve import open_stdout, serve

BATCH, BATCHES, EPOCHS, SIGMA, RATE = 512, 100, 10, 0.3, 1e-3


def data():
    return np.random.default_rng(0).normal(size=(BATCH * BATCHES, 2)).astype(np.float32)


def floor():
    """Return a bare scan of loss, gradient and Adam over batches that lie in order."""
    import jax
    import jax.numpy as jnp
    import optax

    sizes = [(2, 128), (128, 128), (128, 2)]
    random = np.random.default_rng(1)
    params = [
        (jnp.asarray(random.uniform(-1, 1, s) / s[0] ** 0.5, jnp.float32), jnp.zeros(s[1]))
        for s in sizes
    ]
    optimizer = optax.adam(RATE)

    def score(params, x):
        *hidden, (w, b) = params
        for weight, bias in hidden:
            x = jax.nn.silu(x @ weight + bias)
        return x @ w + b

    def loss(params, key, x):
        noise = jax.random.normal(key, x.shape)
        return jnp.mean(jnp.sum((score(params, x + SIGMA * noise) + noise / SIGMA) ** 2, 1)) / 2

    @jax.jit
    def epoch(carry, key, batches):
        def step(carry, at):
            params, state = carry
            index, batch = at
            value, gradient = jax.value_and_grad(loss)(
                params, jax.random.fold_in(key, index), batch
            )
            updates, state = optimizer.update(gradient, state)
            return (optax.apply_updates(params, updates), state), value

        return jax.lax.scan(step, carry, (jnp.arange(BATCHES), batches))

    batches = jnp.asarray(data().reshape(BATCHES, BATCH, 2))
    begin = (params, optimizer.init(params))
    jax.block_until_ready(epoch(begin, jax.random.key(0), batches))

    def run(number):
        carry, key, last = begin, jax.random.key(number), float("nan")
        for count in range(EPOCHS):
            carry, losses = epoch(carry, jax.random.fold_in(key, count), batches)
            last = float(losses.mean())
        return lambda: {"batches": EPOCHS * BATCHES, "loss": last}

    return run, {}


def estimator(**settings):
    """Return a whole fit, its set-up included."""
    import samplekit as sk

    rows = data()
    model = sk.ScoreNetwork(
        sigma=SIGMA,
        epochs=EPOCHS,
        batch_size=BATCH,
        learning_rate=RATE,
        random_state=0,
        progress=False,
        standardize=False,
        **settings,
    )
    model.fit(rows)

    def run(number):
        found = model.set_params(random_state=number).fit(rows)
        last = float(found.history_["loss"].iloc[-1])
        return lambda: {"batches": EPOCHS * BATCHES, "loss": last}

    return run, {}


BARE = {"clip": None, "average": 0.0, "schedule": "constant"}
CONTENDERS = {
    "floor": floor,
    "samplekit": lambda: estimator(**BARE),
    "samplekit-defaults": estimator,
}


def first():
    """Say how long after the imports the first batch is trained on, nothing being cached."""
    say = open_stdout()
    import jax

    import samplekit as sk

    jax.config.update("jax_enable_compilation_cache", False)
    model = sk.ScoreNetwork(epochs=1, batch_size=BATCH, random_state=0, progress=False)
    imported = time.perf_counter()
    model.fit(data()[:BATCH])
    say({"first_s": time.perf_counter() - imported})


if __name__ == "__main__":
    if sys.argv[1] == "first":
        first()
    else:
        serve(CONTENDERS[sys.argv[1]])
