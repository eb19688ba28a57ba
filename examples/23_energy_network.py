"""An energy learned by persistent contrastive divergence, beside the density its rows came from.

A network E, p ∝ exp(−E), sees 4000 rows of a mixture. Its gradient compares them with chains of
MALA on the energy of the moment, which are kept from batch to batch. What comes out is a density
like any other: `sk.plot_target` draws its landscape, NUTS samples it, and the Stein discrepancy
of fresh rows says how well it fits.
"""

import jax
import numpy as np
from _style import BLUE, INK, VERMILION, contours, options, plt, save, scatter

import samplekit as sk

BOX = (-4.0, 4.0, -4.0, 4.0)


def main():
    args = options(__doc__)
    exact = sk.targets.mixture([1, 2, 3], [[-1.6, 1.2], [1.6, 1.4], [0.2, -1.6]], 0.7)
    rows, fresh = (np.asarray(exact.draw(jax.random.key(i), n)) for i, n in enumerate((4000, 1000)))
    model = sk.EnergyNetwork(
        method="pcd",
        kernel=sk.MALA(),
        kernel_steps=10,
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
    contours(axes[0], exact.log_density, BOX)
    scatter(axes[0], rows, 1000)
    contours(axes[1], target.log_density, BOX)
    scatter(axes[1], run.posterior["x"].values.reshape(-1, 2), 1000)
    for ax, title in zip(axes, ("exact, and rows", "learned, and draws by NUTS"), strict=False):
        ax.set(title=title, xticks=[], yticks=[], xlim=BOX[:2], ylim=BOX[2:], aspect="equal")
    history = model.history_
    for ax, name, color, title in (
        (axes[2], "energy_gap", BLUE, "energy: data − chains"),
        (axes[3], "chain_spread", VERMILION, "width: chains / data"),
    ):
        ax.plot(history.index, history[name], c=color)
        ax.axhline(float(name == "chain_spread"), color=INK, lw=0.6, ls="--")
        ax.set(title=title, xlabel="epoch")
    save(figure, args, "23_energy_network")
    figure = sk.plot_target(target, run, bounds=np.reshape(BOX, (2, 2)))
    save(figure, args, "23_energy_landscape")


if __name__ == "__main__":
    main()
