"""From an energy to draws that can be trusted: the shortest way."""

import arviz as az
import jax.numpy as jnp
import numpy as np
from _style import BLUE, SKY, contours, options, plt, save, scatter

import samplekit as sk


def energy(x):
    """A valley that bends: any function that JAX can differentiate will do."""
    return x[0] ** 2 / 4 + 2 * (x[1] - jnp.cos(x[0])) ** 2


def main():
    args = options(__doc__)
    target = sk.from_energy(energy, dim=2)  # p(x) proportional to exp(-energy(x))
    run = sk.sample(target, draws=100 if args.quick else 2000, seed=1)  # HMC, tuned in warm-up

    print(az.summary(run))
    print("divergences:", int(run.sample_stats["diverging"].sum()))
    print("the tuned kernel:", sk.kernel_of(run))

    x = run.posterior["x"].values
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), width_ratios=[3, 2])
    contours(left, target.log_density, (-5, 5, -3, 3))
    scatter(left, x)
    left.set(title="An energy and its draws", xlabel="x[0]", ylabel="x[1]")
    # x[0] alone is exactly N(0, 2): the cosine shifts x[1] only.
    grid = np.linspace(-5, 5, 200)
    right.hist(
        x[..., 0].ravel(), bins=np.linspace(-5, 5, 50), density=True, color=SKY, label="draws"
    )
    right.plot(grid, np.exp(-(grid**2) / 4) / np.sqrt(4 * np.pi), color=BLUE, label="exact")
    right.set(title="x[0] alone", xlabel="x[0]", ylabel="density")
    right.legend()
    save(figure, args, "01_quick_start")


if __name__ == "__main__":
    main()
