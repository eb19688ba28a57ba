"""Scores learned from rows beside the exact ones: a mixture, a ring, a checkerboard, two moons.

Denoising score matching learns the score of the data plus a little noise. Where the density is
known the exact score of the noisy data is drawn beside it; for the checkerboard and the moons it is
that of the rows themselves, each a small Gaussian, which is what the loss compares with.
"""

import jax
import jax.numpy as jnp
import numpy as np
from _style import INK, options, plt, save, scatter
from sklearn.datasets import make_moons

import samplekit as sk


def checkerboard(count):
    """Return rows on the dark squares of a 4 × 4 board."""
    random = np.random.default_rng(0)
    x = random.uniform(-2, 2, (8 * count, 2))
    return x[np.floor(x).sum(axis=1) % 2 == 0][:count]


def from_rows(rows, sigma):
    """Return the score of rows plus noise, Σ w_i (x_i − x)/σ²."""
    rows = jnp.asarray(rows, jnp.float32)

    def score(x):
        weight = jax.nn.softmax(-((x - rows) ** 2 / (2 * sigma**2)).sum(axis=1))
        return (weight @ rows - x) / sigma.max() ** 2

    return score


def arrows(ax, rows, scores, at, title):
    """Draw a field over the rows; arrows as long as the square root of the score."""
    scatter(ax, rows, 1500)
    s = np.asarray(scores)
    root = s / np.sqrt(np.maximum(np.linalg.norm(s, axis=1), 1e-9))[:, None]
    ax.quiver(*at.T, *root.T, color=INK, pivot="mid", width=0.005, alpha=0.8)
    ax.set(title=title, xticks=[], yticks=[], aspect="equal")


def main():
    args = options(__doc__)
    count = 1000 if args.quick else 5000
    mixture = sk.targets.mixture([1, 2, 2], [[-2.0, 0.0], [1.5, 1.5], [1.0, -1.8]], 0.6)
    data = {
        "mixture": np.asarray(mixture.draw(jax.random.key(0), count), float),
        "ring": np.asarray(sk.targets.ring().draw(jax.random.key(0), count), float),
        "checkerboard": checkerboard(count),
        "two moons": make_moons(count, noise=0.05, random_state=0)[0],
    }
    figure, axes = plt.subplots(2, 4, figsize=(12, 6.4))
    for column, (name, rows) in zip(axes.T, data.items(), strict=True):
        # One scale for both columns of the data, so that the noise is round.
        rows = (rows - rows.mean(axis=0)) / rows.std()
        sigma = 0.15
        model = sk.ScoreNetwork(
            sigma=sigma,
            standardize=False,
            epochs=10 if args.quick else 150,
            learning_rate=3e-3,
            random_state=0,
            progress=False,
        ).fit(rows)
        many = data[name]
        if name in ("mixture", "ring"):  # more rows than the network saw
            source = mixture if name == "mixture" else sk.targets.ring()
            many = np.asarray(source.draw(jax.random.key(1), 10 * count), float)
        many = (many - data[name].mean(axis=0)) / data[name].std()
        exact = jax.jit(jax.vmap(from_rows(many, np.full(1, sigma, np.float32))))
        low, high = rows.min(axis=0) - 0.3, rows.max(axis=0) + 0.3
        grid = np.meshgrid(*(np.linspace(a, b, 18) for a, b in zip(low, high, strict=True)))
        at = np.stack([g.ravel() for g in grid], axis=1).astype(np.float32)
        noise = sigma * np.random.default_rng(1).normal(size=(1000, 2))
        fresh = (rows[:1000] + noise).astype(np.float32)
        truth = np.asarray(exact(fresh))
        error = np.square(model.stein_score(fresh) - truth).sum() / np.square(truth).sum()
        print(f"{name:13s} relative error of the learned score {error:.3f}")
        arrows(column[0], rows, exact(at), at, f"{name}: exact")
        arrows(column[1], rows, model.stein_score(at), at, f"learned, error {error:.2f}")
    save(figure, args, "35_score_fields")


if __name__ == "__main__":
    main()
