"""Targets compose: a learned score as the prior, an exponential family as the energy part.

The prior is known by 4000 rows only, a ring, and its score is learned. What is seen of one point x
is y = x₁ + noise: a Gaussian, fitted as an exponential family to repeated measurements of the
noise. Their product is the posterior, sampled by a kernel that needs a score only; with a
conservative network there is a density and Metropolis is exact. The truth is a sum over the rows.
"""

import jax.numpy as jnp
import numpy as np
from _style import BLUE, INK, VERMILION, options, plt, save, scatter

import samplekit as sk


def ring(count, seed):
    """Return rows on a ring, more of them above than below."""
    random = np.random.default_rng(seed)
    angle = np.pi / 2 + random.vonmises(0.0, 0.5, count)
    x = 2 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return x + 0.15 * random.normal(size=(count, 2))


def main():
    args = options(__doc__)
    rows = ring(4000, 0)
    settings = {"epochs": 5 if args.quick else 100, "random_state": 0, "progress": False}
    settings |= {"learning_rate": 3e-3, "sigma": 0.05}
    noise = sk.families.gaussian(1).fit(np.random.default_rng(2).normal(0, 0.3, (500, 1)))
    seen, width = 1.7, float(noise.params_["precision"]) ** -0.5
    print(f"the family's estimate of the noise: {width:.3f} (truth 0.3)")
    error = noise.target()
    likelihood = sk.from_log_density(lambda x: error.log_density(seen - x[:1]), 2)

    # Every row, weighted by its likelihood, is a draw of the posterior.
    many = ring(100_000, 3)
    weight = np.exp(-((seen - many[:, 0]) ** 2) / (2 * width**2))
    chosen = np.random.default_rng(4).choice(len(many), 4000, p=weight / weight.sum())

    draws = {"draws": 200 if args.quick else 2000, "warmup": 500, "chains": 8, "progress": False}
    begin = jnp.asarray(many[chosen[:8]], jnp.float32)
    panels = {"weighted rows (truth)": (many[chosen], INK)}
    for name, conservative, kernel, color in (
        ("learned score, ScoreMALA", False, sk.ScoreMALA(), BLUE),
        ("learned energy, MALA", True, sk.MALA(), VERMILION),
    ):
        prior = sk.ScoreNetwork(conservative=conservative, **settings).fit(rows)
        posterior = sk.product(prior.target(), likelihood)
        run = sk.sample(posterior, kernel, init=begin, **draws)
        panels[name] = (run.posterior["x"].values.reshape(-1, 2), color)

    figure, axes = plt.subplots(1, 4, figsize=(12.5, 3.9))
    scatter(axes[0], rows, 2000)
    axes[0].axvspan(seen - width, seen + width, color=BLUE, alpha=0.15)
    axes[0].set(title="prior's rows; x₁ is seen")
    for ax, (name, (x, color)) in zip(axes[1:], panels.items(), strict=True):
        found = f"mean of x₂ {x[:, 1].mean():.2f}, sd {x[:, 1].std():.2f}"
        print(f"{name:26s} {found}, mean of x₁ {x[:, 0].mean():.2f}")
        ax.plot(*x[:: max(1, len(x) // 1500)].T, ".", ms=2, color=color, alpha=0.4)
        ax.set(title=name, xlabel=found)
    for ax in axes:
        ax.set(xlim=(-3, 3), ylim=(-3, 3), aspect="equal", xticks=[], yticks=[])
    save(figure, args, "37_prior_times_likelihood")


if __name__ == "__main__":
    main()
