"""How far the reverse SDE ends from its data: by time, by step, by the error of the score.

Each step is Gaussian, so in one dimension the law of the sampler is a product of matrices, and its
total variation to the data is known exactly (lines). Dots are histograms of draws. Dashed: the
bounds of Chen et al. 2023, arXiv:2209.11215; the one in the step is known up to a constant.
"""

import jax
import jax.numpy as jnp
import numpy as np
from _style import BLUE, INK, ORANGE, options, plt, save

import samplekit as sk
from samplekit import diffusion
from samplekit.diffusion.reverse import tables

FAMILY = sk.targets.noised_mixture([1, 2], [[-1.5], [1.0]], 0.4)
GRID = np.linspace(-7, 7, 281)
DX = GRID[1] - GRID[0]
NORMAL = np.exp(-(GRID**2) / 2) / np.sqrt(2 * np.pi)
DATA = np.exp(np.asarray(jax.vmap(lambda x: FAMILY.at(0.0).log_density(x[None]))(GRID)))


def score(time, epsilon=0.0):
    """Return the score of dx = −x dt + √2 dW at a part of `time`, with a planted error."""
    process = diffusion.VP(2 * time, 2 * time)

    def at(x, t):
        scale, sd = process.marginal(t)
        return FAMILY.at(sd / scale).score(x / scale) / scale + epsilon

    return process, at


def law(time, steps, epsilon=0.0):
    """Return the density of what the sampler draws: its steps as matrices."""
    process, at = score(time, epsilon)
    times, density = np.linspace(1, 0, steps + 1), NORMAL
    rows = jax.jit(jax.vmap(lambda t: jax.vmap(lambda x: at(x[None], t)[0])(jnp.asarray(GRID))))
    moves = tables(process, "exponential", times)[0]
    for (r, w, c), s in zip(moves, rows(times[:-1]), strict=True):
        apart = (GRID[:, None] - (r * GRID + w * np.asarray(s))) / c
        density = np.exp(-(apart**2) / 2) @ density * DX / (c * np.sqrt(2 * np.pi))
    return density


def drawn(time, steps, epsilon, particles):
    """Return the total variation of a histogram of draws."""
    settings = {"particles": particles, "dim": 1, "denoise": False, "progress": False}
    out = diffusion.reverse(*score(time, epsilon), steps=steps, **settings)
    seen = np.histogram(out["posterior"]["x"], GRID[::8])[0] / particles
    mass = np.concatenate([[0.0], np.cumsum(DATA[1:] + DATA[:-1]) * DX / 2])[::8]
    return np.abs(seen - np.diff(mass)).sum() / 2


def main():
    args = options(__doc__)
    particles = 2_000 if args.quick else 100_000
    divergence = np.sum(DATA * (np.log(np.maximum(DATA, 1e-30)) - np.log(NORMAL))) * DX
    panels = {
        "time T": [(t, int(160 * t), 0.0) for t in (0.25, 0.5, 0.75, 1.0, 1.5)],
        "step h": [(3.0, n, 0.0) for n in (15, 30, 60, 120)],
        "error ε of the score": [(3.0, 240, e) for e in (0.05, 0.1, 0.2, 0.4)],
    }
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.6), sharey=True)
    axes[0].set_ylabel("total variation to the data")
    for ax, (name, cases) in zip(axes, panels.items(), strict=True):
        exact = [np.abs(law(*case) - DATA).sum() * DX / 2 for case in cases]
        seen = [drawn(*case, particles) for case in cases]
        time, steps, error = np.array(cases).T
        x, bound, label = {
            "t": (time, np.exp(-time) * np.sqrt(divergence / 2), "bound"),
            "s": (time / steps, exact[0] * np.sqrt(steps[0] / steps), "rate of the bound, √h"),
            "e": (error, error * np.sqrt(time / 2), "bound"),
        }[name[0]]
        ax.plot(x, exact, color=BLUE, label="law of the sampler")
        ax.plot(x, seen, "o", color=ORANGE, label=f"{particles:,} draws")
        ax.plot(x, bound, "--", color=INK, label=label)
        ax.set(xlabel=name, yscale="log", xscale="linear" if name[0] == "t" else "log")
        ax.set_xticks(x, [f"{value:.2g}" for value in x])
        ax.minorticks_off()
        ax.legend()
        slope = np.polyfit(x if name[0] == "t" else np.log(x), np.log(exact), 1)[0]
        print(f"{name:22s} total variation {exact[0]:.4f} to {exact[-1]:.4f}, rate {slope:.2f}")
    save(figure, args, "31_diffusion_theory")


if __name__ == "__main__":
    main()
