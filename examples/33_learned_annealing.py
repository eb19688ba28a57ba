"""The toy of two far modes again, its score learned from 5000 rows instead of known.

⅕ N((−5,−5), I) + ⅘ N((5,5), I): plain Langevin keeps its particles where they began, half on each
side. Down the noise levels that `sk.noise_levels` chooses, annealed Langevin finds the weights,
with the exact score and with that of a network that has seen nothing but the rows.
"""

import jax
import numpy as np
from _style import BLUE, INK, VERMILION, contours, options, plt, save

import samplekit as sk

MEANS = [[-5.0, -5.0], [5.0, 5.0]]
BOX = (-12, 12, -12, 12)


def start(key, n):
    """Begin in the box of the lecture."""
    return jax.random.uniform(key, (n, 2), minval=-8.0, maxval=8.0)


def share(x):
    """Return the part of the particles at the mode of weight 0.8."""
    return float((x.sum(-1) > 0).mean())


def main():
    args = options(__doc__)
    target = sk.targets.mixture([0.2, 0.8], MEANS)
    rows = np.asarray(target.draw(jax.random.key(0), 5000))
    print(sk.noise_levels(rows))
    model = sk.NoiseConditionalScoreNetwork(
        epochs=20 if args.quick else 200, random_state=0, progress=False
    ).fit(rows)
    exact = sk.noise_path(sk.targets.noised_mixture([0.2, 0.8], MEANS), model.levels_)
    kernel = sk.Langevin(float(model.step_size_))
    settings = {"particles": 1000 if args.quick else 10_000, "seed": 1, "progress": False}

    panels = []
    for name, family in (("exact", exact), ("learned", model.family())):
        lecture = sk.noise_path(family, model.levels_[-1:], start=start)
        plain = sk.anneal(lecture, sk.Langevin(0.1**0.5), steps=1000, **settings)
        annealed = sk.anneal(family, kernel, **settings)
        panels += [(f"Langevin, {name} score", plain, VERMILION)]
        panels += [(f"annealed, {name} score", annealed, BLUE)]

    figure, axes = plt.subplots(1, 4, figsize=(12, 3.3), sharex=True, sharey=True)
    for ax, (title, out, color) in zip(axes, panels, strict=True):
        x = out.posterior["x"].values[:, 0]
        right = x[x.sum(-1) > 0]
        print(f"{title:25s} {share(x):.3f} right (truth 0.8), sd there {right.std(0).mean():.2f}")
        contours(ax, target.log_density, BOX)
        ax.plot(*x[:1000].T, ".", ms=2, color=color, alpha=0.5)
        ax.set(title=title, xlim=BOX[:2], ylim=BOX[2:], aspect="equal")
        ax.text(0.04, 0.9, f"{share(x):.2f} right", transform=ax.transAxes, color=INK)
    save(figure, args, "33_learned_annealing")


if __name__ == "__main__":
    main()
