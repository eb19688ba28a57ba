"""Fisher divergence is the rate at which noise destroys KL divergence (de Bruijn's identity).

With Gaussian noise of variance t added to both p and q: d/dt KL(p ‖ q) = −½ E‖∇ log p − ∇ log q‖².
The right side is a mean difference of Hyvärinen scores, so scores at all noise levels, none of
which knows a normalising constant, add up to the KL divergence, which does.
"""

import jax
import jax.numpy as jnp
import numpy as np
from _style import BLUE, INK, ORANGE, VERMILION, options, plt, save
from scipy.integrate import cumulative_simpson

import samplekit as sk

P = sk.targets.mixture([0.4, 0.6], [[-1.5], [1.5]], [0.5, 0.4])
Q = sk.targets.gaussian([0.0], 2.0)
X = np.linspace(-25.0, 25.0, 4001)


def log_density(target):
    with jax.enable_x64(True):
        return np.asarray(jax.vmap(target.log_density)(jnp.asarray(X[:, None])))


def noised(t):
    return [sk.smoothed(target, float(np.sqrt(t))) for target in (P, Q)]


def kl(t):
    """Return ∫ p log(p/q)."""
    log_p, log_q = map(log_density, noised(t))
    return np.trapezoid(np.exp(log_p) * (log_p - log_q), X)


def half_fisher(t):
    """Return E_p[S(q) − S(p)], S the Hyvärinen score."""
    p, q = noised(t)
    gap = sk.hyvarinen_score(q, X[:, None]) - sk.hyvarinen_score(p, X[:, None])
    return np.trapezoid(np.exp(log_density(p)) * gap, X)


def main():
    args = options(__doc__)
    times = np.append(0, np.geomspace(1e-3, 20.0, 15 if args.quick else 60))
    rate = np.array([half_fisher(t) for t in times])
    shown = times[1 :: len(times) // 12]
    # Small steps for small t; the error of a central difference is of second order.
    steps = 1e-2 * shown
    slopes = [(kl(t - h) - kl(t + h)) / (2 * h) for t, h in zip(shown, steps, strict=True)]
    lost = cumulative_simpson(rate, x=times, initial=0)
    print(
        f"KL at t = 0: {kl(0.0):.4f};  scores added up: {lost[-1]:.4f} + {kl(times[-1]):.4f} left"
    )

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.6))
    for t, alpha in ((0.0, 1.0), (0.5, 0.6), (4.0, 0.3)):
        for target, color, name in zip(noised(t), (BLUE, ORANGE), "pq", strict=True):
            label = name if t == 0 else None
            left.plot(X, np.exp(log_density(target)), color=color, alpha=alpha, label=label)
    left.set(xlim=(-6, 6), title="Noise makes p and q alike", xlabel="x", yticks=[])
    left.legend(title="t = 0, then ½ and 4")
    middle.plot(times, rate, color=BLUE, label="½ Fisher, from scores")
    middle.plot(shown, slopes, "o", color=VERMILION, ms=4, label="−dKL/dt, by differences")
    middle.set(xscale="log", xlabel="variance t of the noise", title="The same rate")
    middle.legend()
    right.plot(times, lost[-1] - lost + kl(times[-1]), color=BLUE, label="scores, added up")
    right.plot(shown, [kl(t) for t in shown], "o", color=INK, ms=4, label="KL, with normalisers")
    right.set(xscale="log", xlabel="variance t of the noise", title="KL(p ‖ q)", ylim=(0, None))
    right.legend()
    save(figure, args, "12_fisher_and_kl")


if __name__ == "__main__":
    main()
