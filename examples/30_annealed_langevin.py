"""Annealed Langevin finds the weights of far modes that plain Langevin gets wrong.

The lecture's toy, ⅕ N((−5,−5), I) + ⅘ N((5,5), I), with its exact score at every noise level. Plain
Langevin keeps about half of the particles on each side: where they started. Annealed from large
noise to small, particles choose a side while the modes are still one. The same from temperatures
gives the integral of the density (log Z, here 0), and replica exchange the weights as well.
"""

import jax
import numpy as np
from _style import BLUE, INK, VERMILION, contours, options, plt, save

import samplekit as sk

MEANS = [[-5.0, -5.0], [5.0, 5.0]]


def start(key, n):
    """Begin in the box of the lecture."""
    return jax.random.uniform(key, (n, 2), minval=-8.0, maxval=8.0)


def share(x):
    """Return the part of the particles at the mode of weight 0.8."""
    return float((x.sum(-1) > 0).mean())


def main():
    args = options(__doc__)
    target = sk.targets.mixture([0.2, 0.8], MEANS)
    # The lecture's levels: noise of standard deviation σ instead of the modes' own.
    family = sk.targets.noised_mixture([0.2, 0.8], MEANS, 1e-3)
    eta = 0.1**0.5  # α = η² = 0.1
    settings = {"particles": 1000 if args.quick else 10_000, "denoise": False, "seed": 1}

    plain = sk.anneal(
        sk.noise_path(family, [1.0], start=start), sk.Langevin(eta), steps=1000, **settings
    )
    path = sk.noise_path(family, np.geomspace(20, 1, 10), start=start)
    annealed = sk.anneal(path, sk.Langevin(eta), steps=100, keep=True, **settings)
    print(f"truth 0.8; Langevin {share(plain.posterior['x'].values):.3f}, ", end="")
    print(f"annealed {share(annealed.posterior['x'].values):.3f}")

    bridge = sk.tempered_path(target, sk.targets.gaussian(2, 50.0))
    smc = sk.anneal(bridge, steps=5, particles=settings["particles"], resample=True)
    print(f"log Z {smc.attrs['log_z']:.3f} ± {smc.attrs['log_z_error']:.3f} (exact 0), ", end="")
    print(f"its particles {share(smc.posterior['x'].values):.3f}")
    kernel = sk.Tempering(sk.HMC(leapfrogs=5))
    run = sk.sample(target, kernel, draws=500 if args.quick else 4000, progress=False)
    trips = run.sample_stats["round_trips"].sum() / run.sample_stats["n_steps"].sum()
    print(f"replica exchange {share(run.posterior['x'].values):.3f}, ", end="")
    print(f"{1000 * float(trips):.1f} round trips per 1000 gradients")

    frames = annealed["path_posterior"]["x"].values
    figure, axes = plt.subplots(1, 5, figsize=(12, 2.9), sharex=True, sharey=True)
    panels = [("Langevin, 1000 steps", plain.posterior["x"].values[:, 0], VERMILION)]
    panels += [
        (f"annealed, σ = {path.levels[i - 1]:.1f}", frames[:, i], BLUE) for i in (1, 4, 7, 10)
    ]
    for ax, (title, x, color) in zip(axes, panels, strict=True):
        contours(ax, target.log_density, (-15, 15, -15, 15))
        ax.plot(*x[:1000].T, ".", ms=2, color=color, alpha=0.5)
        ax.set(title=title, xlim=(-15, 15), ylim=(-15, 15), aspect="equal")
        ax.text(0.04, 0.9, f"{share(x):.2f} right", transform=ax.transAxes, color=INK)
    save(figure, args, "30_annealed_langevin")


if __name__ == "__main__":
    main()
