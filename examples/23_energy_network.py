"""An energy learned by persistent contrastive divergence, and where its chains were.

A network E, p ∝ exp(−E), sees 4000 rows of two moons. Its gradient compares them with chains of
MALA on the energy of the moment, which are kept from batch to batch. What comes out is a density
like any other: `sk.plot_target` draws its landscape, NUTS samples it, and the Stein discrepancy
of fresh rows says how well it fits.
"""

import numpy as np
from _style import BLUE, INK, VERMILION, contours, options, plt, save, scatter
from sklearn.datasets import make_moons

import samplekit as sk

BOX = (-2.6, 2.6, -2.6, 2.6)


def moons(count, seed):
    x = make_moons(count, noise=0.15, random_state=seed)[0]
    return (x - [0.5, 0.25]) / [0.87, 0.5]


def main():
    args = options(__doc__)
    rows, fresh = moons(4000, 0), moons(1000, 1)
    model = sk.EnergyNetwork(
        method="pcd",
        kernel=sk.MALA(),
        kernel_steps=20,
        epochs=5 if args.quick else 60,
        buffer_size=4000,
        random_state=0,
        progress=False,
    ).fit(rows)
    print(model.history_.iloc[[0, -1]].round(3).to_string(index=False))
    target = model.target()
    draws = {"draws": 200, "warmup": 200} if args.quick else {"draws": 1000, "warmup": 1000}
    run = sk.sample(target, progress=False, **draws)
    found = sk.sliced_wasserstein(run, fresh).value
    train = sk.sliced_wasserstein(rows, fresh).value
    print(
        f"sliced Wasserstein distance to fresh rows: draws {found:.3f}, training rows {train:.3f}"
    )
    stein = sk.stein_discrepancy(fresh, target)
    print(f"Stein discrepancy of fresh rows: {stein.value:.3f}, p = {stein.p_value:.2f}")

    figure, axes = plt.subplots(1, 4, figsize=(12.5, 3.2))
    contours(axes[0], target.log_density, BOX)
    scatter(axes[0], rows, 1000)
    contours(axes[1], target.log_density, BOX)
    scatter(axes[1], run.posterior["x"].values.reshape(-1, 2), 1000)
    for ax, title in zip(axes, ("rows on exp(−E)", "draws by NUTS"), strict=False):
        ax.set(title=title, xticks=[], yticks=[], xlim=BOX[:2], ylim=BOX[2:], aspect="equal")
    history = model.history_
    for ax, name, color in (
        (axes[2], "energy_gap", BLUE),
        (axes[3], "chain_spread", VERMILION),
    ):
        ax.plot(history.index, history[name], c=color)
        ax.axhline(float(name == "chain_spread"), color=INK, lw=0.6, ls="--")
        ax.set(title=name.replace("_", " ") + " of chains", xlabel="epoch")
    save(figure, args, "23_energy_network")
    figure = sk.plot_target(target, run, bounds=np.reshape(BOX, (2, 2)))
    save(figure, args, "23_energy_landscape")


if __name__ == "__main__":
    main()
