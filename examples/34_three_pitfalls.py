"""Three ways to fail with a learned score, each before and after noise.

Data on a thin manifold have no score: sliced score matching has no minimum and the field is wild,
while noise gives the curve a width. Where no row ever fell the score is a guess: noise takes rows
there. And Langevin does not cross from mode to mode: annealing from much noise to little does.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from _style import BLUE, VERMILION, contours, options, plt, save, scatter

import samplekit as sk


def field(ax, score, box, title):
    """Draw arrows of a score, all of one length, colored by how long they really are."""
    x, y = np.meshgrid(np.linspace(*box[:2], 17), np.linspace(*box[2:], 17))
    at = np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float32)
    s = np.asarray(jax.vmap(score)(jnp.asarray(at)))
    long = np.linalg.norm(s, axis=1)
    unit = s / np.maximum(long, 1e-9)[:, None]
    ax.quiver(*at.T, *unit.T, np.log10(long), cmap="viridis", pivot="mid", scale=22, width=0.005)
    ax.set(title=title, xlim=box[:2], ylim=box[2:], aspect="equal", xticks=[], yticks=[])


def manifold(axes, settings):
    """Learn the score of a circle, without noise and with it."""
    angle = np.random.default_rng(0).uniform(0, 2 * np.pi, 2000)
    rows = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        thin = sk.ScoreNetwork("sliced", **settings).fit(rows)
    noisy = sk.ScoreNetwork("denoising", sigma=0.2, **settings).fit(rows)
    print(f"circle: {said[0].message}")
    print(f"        the sliced loss has fallen to {thin.history_['loss'].iloc[-1]:.0f}")
    for ax, model, title in zip(axes, (thin, noisy), ("no noise", "noise of 0.2"), strict=True):
        field(ax, model.target().score, (-1.6, 1.6, -1.6, 1.6), f"thin: {title}")
        scatter(ax, rows, 400)


def low_density(axes, target, rows, settings):
    """Learn the score of two modes, and look between them."""
    model = sk.NoiseConditionalScoreNetwork(**settings).fit(rows)
    between = np.asarray(jax.random.uniform(jax.random.key(2), (500, 2), minval=-2.0, maxval=2.0))
    titles = ("gap: little noise", "gap: much noise")
    for ax, sigma, title in zip(axes, (model.levels_[-1], 4.0), titles, strict=True):
        true = np.asarray(jax.vmap(target.smoothed(float(sigma)).score)(between))
        off = np.square(model.stein_score(between, sigma) - true).sum() / np.square(true).sum()
        print(f"between the modes, noise {sigma:.2g}: relative error {off:.3f}")
        field(ax, model.family().at(sigma).score, (-9, 9, -9, 9), f"{title}, error {off:.2f}")
        scatter(ax, rows + sigma * np.random.default_rng(0).normal(size=rows.shape), 400)
    return model


def slow_mixing(axes, target, model, particles):
    """Start all particles in the small mode."""
    begin = lambda key, n: jax.random.normal(key, (n, 2)) - 5.0  # noqa: E731
    both = (model.levels_[-1:], model.levels_)
    paths = [sk.noise_path(model.family(), levels, start=begin) for levels in both]
    kernels = (sk.Langevin(0.1**0.5), sk.Langevin(float(model.step_size_)))
    for ax, path, kernel, steps in zip(axes, paths, kernels, (1500, 100), strict=True):
        out = sk.anneal(path, kernel, steps=steps, particles=particles, progress=False)
        x = out.posterior["x"].values[:, 0]
        share = float((x.sum(1) > 0).mean())
        name = "annealed" if len(path.levels) > 1 else "Langevin"
        print(f"{name} from the small mode: {share:.2f} reach the large one (truth 0.8)")
        contours(ax, target.log_density, (-9, 9, -9, 9))
        ax.plot(*x[:800].T, ".", ms=2, color=BLUE if share > 0.5 else VERMILION, alpha=0.5)
        ax.set(title=f"mixing: {name}, {share:.2f} right", aspect="equal", xticks=[], yticks=[])


def main():
    args = options(__doc__)
    settings = {"epochs": 15 if args.quick else 150, "random_state": 0, "progress": False}
    figure, axes = plt.subplots(2, 3, figsize=(10.5, 7.2))
    manifold(axes[:, 0], settings)
    target = sk.targets.mixture([0.2, 0.8], [[-5.0, -5.0], [5.0, 5.0]])
    rows = np.asarray(target.draw(jax.random.key(0), 4000))
    model = low_density(axes[:, 1], target, rows, settings)
    slow_mixing(axes[:, 2], target, model, 500 if args.quick else 4000)
    save(figure, args, "34_three_pitfalls")


if __name__ == "__main__":
    main()
