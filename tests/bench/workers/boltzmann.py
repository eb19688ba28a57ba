"""Train one machine: `python -m tests.bench.workers.boltzmann CONTENDER [VISIBLE HIDDEN]`."""

import sys

import numpy as np

from tests.bench.serve import serve

ROWS, BATCH = 10_000, 100
# The trainer's own default, for what takes milliseconds an epoch; others would take minutes.
EPOCHS, FEW_EPOCHS = 100, 10


def data(visible):
    return np.random.default_rng(0).normal(size=(ROWS, visible)).astype(np.float32)


def weights(visible, hidden):
    return np.random.default_rng(1).normal(0, 0.01, (hidden, visible)).astype(np.float32)


def products(visible, hidden):
    """Return the three matrix products of a batch and nothing else, in one scan an epoch."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def epoch(w, batches):
        def step(w, v):
            a = v @ w.T
            return w + 1e-12 * (a.T @ (a @ w - v)), None

        return jax.lax.scan(step, w, batches)[0]

    batches = jnp.asarray(data(visible).reshape(-1, BATCH, visible))
    w = jnp.asarray(weights(visible, hidden))
    epoch(w, batches).block_until_ready()

    def run(_):
        out = w
        for _ in range(EPOCHS):
            out = epoch(out, batches).block_until_ready()
        return lambda: {"epochs": EPOCHS, "finite": bool(np.isfinite(out).all())}

    return run, {}


def training(kind, visible, hidden):
    """Return a whole training by the trainer that the estimators use."""
    import jax.numpy as jnp

    from samplekit.estimators.rbm_objectives import Contrastive, Fisher
    from samplekit.targets.boltzmann import GaussBernoulli
    from samplekit.training.plan import Plan
    from samplekit.training.trainer import train

    kind, _, short = kind.partition(", ")
    epochs = EPOCHS if kind.startswith("fisher") and not short else FEW_EPOCHS
    objective = {
        "fisher": Fisher(True),
        "fisher-learned": Fisher(False),
        "cd": Contrastive(True, 1, 0),
        "pcd": Contrastive(True, 1, BATCH),
    }[kind]
    parts = (weights(visible, hidden), np.zeros(hidden), np.zeros(visible), np.zeros(visible))
    machine = GaussBernoulli.of(*(jnp.asarray(p, jnp.float32) for p in parts))
    rows, plan = data(visible), Plan(epochs=epochs, batch_size=BATCH, learning_rate=1e-4)
    train(objective, machine, rows, plan, progress=False)

    def run(number):
        found = train(objective, machine, rows, plan, seed=number, progress=False)
        return lambda: {"epochs": epochs, "norm": found.history[-1]["gradient_norm"]}

    return run, {}


def scikit_learn(visible, hidden):
    """Return scikit-learn's machine, which has binary units and trains by persistent chains."""
    from sklearn.neural_network import BernoulliRBM

    rows = (data(visible) > 0).astype(np.float32)

    def run(number):
        options = {"batch_size": BATCH, "n_iter": FEW_EPOCHS, "random_state": number}
        found = BernoulliRBM(hidden, **options).fit(rows)
        return lambda: {"epochs": FEW_EPOCHS, "finite": bool(np.isfinite(found.components_).all())}

    return run, {}


def digits(library):
    """Return a fit of scikit-learn's digits by its defaults, and both judgements of it."""
    import warnings

    from sklearn.datasets import load_digits
    from sklearn.neural_network import BernoulliRBM

    import samplekit as sk
    from samplekit.core.errors import DataWarning

    warnings.simplefilter("ignore", DataWarning)  # constant corners
    rows = (load_digits().data > 7).astype(np.float64)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    train, test = rows[:1437], rows[1437:]

    def fit(seed):
        if library == "samplekit":
            return sk.BernoulliRBM(64, epochs=10, progress=False, random_state=seed).fit(train)
        return BernoulliRBM(64, n_iter=10, random_state=seed).fit(train)

    own, theirs = sk.BernoulliRBM(64, epochs=1, progress=False).fit(train), BernoulliRBM(64)
    fit(0)

    def judge(model):
        parts = (model.components_, model.intercept_hidden_, model.intercept_visible_)
        own.machine_ = type(own.machine_).of(*(np.asarray(p, np.float32) for p in parts))
        theirs.components_, theirs.intercept_hidden_, theirs.intercept_visible_ = parts
        theirs.random_state_ = np.random.RandomState(0)
        scores = [theirs.score_samples(test).mean() for _ in range(400)]  # one random site a row
        return {"exact": own.score(test), "theirs": float(np.mean(scores))}

    def run(number):
        model = fit(number % 5)
        return lambda: judge(model)

    return run, {}


if __name__ == "__main__":
    who, *shape = sys.argv[1:]
    if who.startswith("digits-"):
        serve(lambda: digits(who.removeprefix("digits-")))
    elif who in ("products", "scikit-learn"):
        alone = {"products": products, "scikit-learn": scikit_learn}[who]
        serve(lambda: alone(*map(int, shape)))
    else:
        serve(lambda: training(who, *map(int, shape)))
