"""The picture of the README: from anything with an energy or a score to a run."""

import jax.numpy as jnp
import numpy as np
from _style import BLUE, INK, VERMILION, contours, options, plt, save
from matplotlib.patches import FancyBboxPatch

import samplekit as sk
from samplekit.demo import NetworkEnergy

STAGES = [
    ("energy · log density\nscore · NumPyro model", "what you have", 2.3),
    ("target", "sk.from_energy(...)", 1.5),
    ("kernel", "sk.NUTS()", 1.1),
    ("run", "an ArviZ DataTree", 1.7),
]


def flow(ax):
    """Draw the stages from left to right."""
    left, gap = 0.0, 0.75
    for i, (name, below, width) in enumerate(STAGES):
        box = FancyBboxPatch((left, 0), width, 1, boxstyle="round,pad=0.02,rounding_size=0.18")
        box.set(facecolor="white" if i == 0 else BLUE, edgecolor=BLUE, linewidth=1.4)
        ax.add_patch(box)
        color = BLUE if i == 0 else "white"
        middle = left + width / 2
        ax.text(middle, 0.5, name, ha="center", va="center", color=color, weight="bold", size=11)
        ax.text(middle, -0.3, below, ha="center", va="top", color=INK, size=9)
        left += width
        if i + 1 < len(STAGES):
            arrow = {"arrowstyle": "-|>", "color": INK, "lw": 1.6}
            ax.annotate("", (left + gap - 0.05, 0.5), (left + 0.05, 0.5), arrowprops=arrow)
            if i == len(STAGES) - 2:
                ax.text(left + gap / 2, 0.68, "sk.sample", ha="center", size=9, color=INK)
            left += gap
    ax.set(xlim=(-0.1, left + 0.1), ylim=(-0.75, 1.45))
    ax.axis("off")


def main():
    args = options(__doc__)
    network = NetworkEnergy()
    noised = sk.targets.noised_mixture(np.ones(6), 2.2 * np.array(hexagon()), 0.3).at(0.5)
    shown = [
        ("a ring by HMC", sk.targets.ring(), sk.HMC(), (-4.6, 4.6, -4.6, 4.6)),
        ("a bend by NUTS", sk.targets.banana(), sk.NUTS(target_accept=0.95), (-6.5, 6.5, -5, 12)),
        ("a network by Barker", sk.from_energy(network, 2), sk.Barker(), (-5, 6, -5.5, 5.5)),
        ("modes by ScoreMALA", noised, sk.ScoreMALA(), (-4.2, 4.2, -4.2, 4.2)),
    ]
    figure = plt.figure(figsize=(10.4, 4.2))
    grid = figure.add_gridspec(2, len(shown), height_ratios=[1, 2.2])
    flow(figure.add_subplot(grid[0, :]))
    for i, (title, target, kernel, box) in enumerate(shown):
        ax = figure.add_subplot(grid[1, i])
        run = sk.sample(target, kernel, draws=300 if args.quick else 4000, progress=False)
        contours(ax, target.log_density, box)
        x = run.posterior["x"].values
        flat = x.reshape(-1, 2)[:: max(1, x.size // 2 // 900)]
        ax.plot(flat[:, 0], flat[:, 1], ".", ms=2.6, color=VERMILION, alpha=0.6, mew=0)
        ax.set_title(title, loc="center", size=10, color=INK)
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    save(figure, args, "00_picture")


def hexagon():
    angles = jnp.linspace(0, 2 * jnp.pi, 7)[:-1]
    return jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)


if __name__ == "__main__":
    main()
