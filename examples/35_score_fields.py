"""Scores learned from rows beside the exact ones: a mixture, a ring, a checkerboard, two moons.

Denoising score matching learns the score of the data plus a little noise. The exact one is a sum
over the data, each row a small Gaussian: here over four times as many rows as the network saw, so
that learning rows by heart would show as an error.
"""

import jax
import jax.numpy as jnp
import numpy as np
from _style import INK, options, plt, save, scatter
from sklearn.datasets import make_moons

import samplekit as sk

SIGMA = 0.15
MIXTURE = sk.targets.mixture([1, 2, 2], [[-2.0, 0.0], [1.5, 1.5], [1.0, -1.8]], 0.6)


def checkerboard(count, seed):
    """Return rows on the dark squares of a 4 × 4 board."""
    x = np.random.default_rng(seed).uniform(-2, 2, (4 * count, 2))
    return x[np.floor(x).sum(axis=1) % 2 == 0][:count]


DATA = {
    "mixture": lambda count, seed: np.asarray(MIXTURE.draw(jax.random.key(seed), count)),
    "ring": lambda count, seed: np.asarray(sk.targets.ring().draw(jax.random.key(seed), count)),
    "checkerboard": checkerboard,
    "two moons": lambda count, seed: make_moons(count, noise=0.05, random_state=seed)[0],
}


def exact_score(rows, at):
    """Return the score of rows plus noise, Σ w_i (x_i − x)/σ², at many places."""
    rows = jnp.asarray(rows, jnp.float32)

    def score(x):
        weight = jax.nn.softmax(-((x - rows) ** 2).sum(axis=1) / (2 * SIGMA**2))
        return (weight @ rows - x) / SIGMA**2

    return np.asarray(jax.jit(lambda at: jax.lax.map(score, at))(jnp.asarray(at)))


def arrows(ax, rows, at, scores, title):
    """Draw a field over the rows; arrows as long as the square root of the score."""
    scatter(ax, rows, 600)
    root = scores / np.sqrt(np.maximum(np.linalg.norm(scores, axis=1), 1e-9))[:, None]
    ax.quiver(*at.T, *root.T, color=INK, pivot="mid", width=0.005, alpha=0.8)
    ax.set(title=title, xticks=[], yticks=[], aspect="equal")


def main():
    args = options(__doc__)
    count = 1000 if args.quick else 5000
    settings = {"sigma": SIGMA, "standardize": False, "learning_rate": 3e-3}
    settings |= {"epochs": 10 if args.quick else 150, "random_state": 0, "progress": False}
    figure, axes = plt.subplots(2, 4, figsize=(10.4, 5.6))
    for column, (name, draw) in zip(axes.T, DATA.items(), strict=True):
        rows, many = draw(count, 0), draw(4 * count, 1)
        # One scale for both columns, so that the noise is round.
        center, scale = rows.mean(axis=0), rows.std()
        rows, many = (rows - center) / scale, (many - center) / scale
        model = sk.ScoreNetwork(**settings).fit(rows)
        noise = SIGMA * np.random.default_rng(1).normal(size=(1000, 2))
        fresh = (many[:1000] + noise).astype(np.float32)
        truth = exact_score(many, fresh)
        error = np.square(model.stein_score(fresh) - truth).sum() / np.square(truth).sum()
        print(f"{name:13s} relative error of the learned score {error:.3f}")
        ends = zip(rows.min(axis=0) - 0.3, rows.max(axis=0) + 0.3, strict=True)
        grid = np.meshgrid(*(np.linspace(low, high, 15) for low, high in ends))
        at = np.stack([g.ravel() for g in grid], axis=1).astype(np.float32)
        arrows(column[0], rows, at, exact_score(many, at), f"{name}: exact")
        arrows(column[1], rows, at, model.stein_score(at), f"learned, error {error:.2f}")
    save(figure, args, "35_score_fields")


if __name__ == "__main__":
    main()
