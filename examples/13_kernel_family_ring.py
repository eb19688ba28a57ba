"""A density of any shape in closed form: 1000 rows from a ring, a hundred centers, one solve.

The kernel exponential family is fitted to slopes of log p, a kernel density estimate to mass. Both
choose their bandwidth on held-out rows. The slopes are what samplers move by, and there the
estimate of mass is far off: it has a bump for every row.
"""

import jax
import jax.numpy as jnp
import numpy as np
from _style import BLUE, INK, ORANGE, contours, options, plt, save, scatter
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity

import samplekit as sk
from samplekit.estimators.kernel_family import KernelExponentialFamily

BOX = (-4.8, 4.8, -4.8, 4.8)


def kernel_density(rows):
    """Return scikit-learn's estimate as a target, its bandwidth the best by likelihood."""
    widths = {"bandwidth": np.geomspace(0.08, 0.8, 12)}
    width = GridSearchCV(KernelDensity(), widths, cv=5).fit(rows).best_params_["bandwidth"]

    def log_density(x):
        apart = (x - jnp.asarray(rows, x.dtype)) / width
        return jax.nn.logsumexp(-(apart**2).sum(axis=1) / 2)

    return sk.from_log_density(log_density, 2)


def slopes(target, x):
    return np.asarray(jax.jit(jax.vmap(target.score))(jnp.asarray(x, jnp.float32)))


def main():
    args = options(__doc__)
    ring = sk.targets.ring()
    rows, fresh = (np.asarray(ring.draw(jax.random.key(i), 1000), float) for i in range(2))
    family = KernelExponentialFamily(30 if args.quick else 100, random_state=0).fit(rows)
    estimates = {"kernel density estimate": kernel_density(rows), "kernel family": family.target()}
    print(f"chosen: bandwidth {family.bandwidth_:.2f}, ridge {family.ridge_:g}")
    errors = {}
    for name, target in estimates.items():
        gap = slopes(target, fresh) - slopes(ring, fresh)
        errors[name] = (gap**2).sum(axis=1).mean()
        print(f"{name:25s} Fisher divergence {errors[name]:.2f}")

    figure, axes = plt.subplots(2, 2, figsize=(8.4, 8.2))
    for ax, (name, target) in zip(axes.ravel(), {"exact": ring, **estimates}.items(), strict=False):
        contours(ax, target.log_density, BOX)
        title = (
            f"{name}: divergence {errors[name]:.2f}" if name in errors else "1000 rows of a ring"
        )
        ax.set(title=title, xticks=[], yticks=[], aspect="equal")
    scatter(axes[0, 0], rows, 1000)
    scatter(axes[1, 0], family.sample(1000, random_state=0), 1000)

    ax = axes[1, 1]
    radius = np.linspace(2.0, 4.0, 300)
    along = np.stack([radius, np.zeros_like(radius)], axis=1)
    for color, (name, target) in zip((ORANGE, BLUE), estimates.items(), strict=True):
        ax.plot(radius, slopes(target, along)[:, 0], color=color, label=name)
    ax.plot(radius, slopes(ring, along)[:, 0], "--", color=INK, label="exact")
    ax.set(title="Slope of log p on a ray", xlabel="radius", ylabel="∂ log p / ∂ radius")
    ax.legend()
    save(figure, args, "13_kernel_family_ring")


if __name__ == "__main__":
    main()
