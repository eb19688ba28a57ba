"""Every kernel on the banana: where they go, and how many effective draws a second."""

import json

import jax
import jax.numpy as jnp
import numpy as np
from _style import BLUE, PALE, contours, options, plt, save, scatter
from matplotlib.patches import Patch

import samplekit as sk
from samplekit.sampling.convergence import summarize


def slide(key, x):
    """Move along the bend: the shear keeps volume, so the proposal is symmetric."""
    step = jax.random.normal(key, (2,)) * jnp.array([2.0, 1.0])
    first = x[0] + step[0]
    return jnp.array([first, x[1] + (first**2 - x[0] ** 2) / 2 + step[1]])


def wide(key):
    """Propose from a Gaussian that covers the banana."""
    return jnp.array([0.0, 2.0]) + jnp.array([3.0, 5.0]) * jax.random.normal(key, (2,))


def log_wide(y):
    return -0.5 * (((y - jnp.array([0.0, 2.0])) / jnp.array([3.0, 5.0])) ** 2).sum()


KERNELS = {
    "RandomWalk": (sk.RandomWalk(), 50_000),
    "MetropolisHastings": (sk.MetropolisHastings(slide, "symmetric"), 50_000),
    "Independence": (sk.Independence(wide, log_wide), 50_000),
    "Langevin": (sk.Langevin(0.25), 50_000),
    "MALA": (sk.MALA(), 50_000),
    "Barker": (sk.Barker(), 50_000),
    "ScoreMALA": (sk.ScoreMALA(), 50_000),
    "HMC": (sk.HMC(target_accept=0.95), 10_000),
    "NUTS": (sk.NUTS(target_accept=0.95), 10_000),
    "MCLMC": (sk.MCLMC(), 50_000),
}


def main():
    args = options(__doc__)
    target = sk.targets.banana()
    rates, runs = {}, {}
    print(f"{'kernel':20}  mean of x[1]²   R-hat      ESS    ESS/s")
    for name, (kernel, draws) in KERNELS.items():
        run = sk.sample(target, kernel, draws=draws // (100 if args.quick else 1), progress=False)
        x = runs[name] = run.posterior["x"].values
        worst = summarize({"x": x})
        rates[name] = worst.ess_bulk / json.loads(run.sampler.attrs["seconds"])["sampling"]
        exact = "" if getattr(kernel, "exact", True) else "  (not adjusted)"
        print(
            f"{name:20}  {np.mean(x[..., 1] ** 2):13.2f}  {worst.rhat:6.3f}"
            f"  {worst.ess_bulk:7,.0f}  {rates[name]:7,.0f}{exact}"
        )
    print(f"{'exact':20}  {target.variance[1]:13.2f}")

    figure, axes = plt.subplots(2, 5, figsize=(10.5, 5), sharex=True, sharey=True)
    for ax, (name, x) in zip(axes.ravel(), runs.items(), strict=True):
        contours(ax, target.log_density, (-6.5, 6.5, -5, 14))
        scatter(ax, x, 800)
        ax.set_title(name, fontsize=10)
    figure.suptitle("The banana (shaded) and 800 draws by each kernel", size=11)
    figure.supxlabel("x[0]", fontsize=10)
    figure.supylabel("x[1]", fontsize=10)
    save(figure, args, "02_draws")

    figure, ax = plt.subplots(figsize=(7, 3.8))
    order = sorted(rates, key=lambda name: rates[name])
    adjusted = [getattr(KERNELS[name][0], "exact", True) for name in order]
    bars = ax.barh(order, [rates[n] for n in order], color=[BLUE if a else PALE for a in adjusted])
    ax.bar_label(bars, labels=[f"{rates[n]:,.0f}" for n in order], padding=3, fontsize=9)
    ax.set(title="Banana: effective draws a second", xlabel="bulk ESS per second of sampling")
    ax.set_xscale("log")
    ax.margins(x=0.15)
    handles = [Patch(color=c) for c in (BLUE, PALE)]
    figure.legend(
        handles, ["exact", "exact only for small steps"], loc="outside lower center", ncols=2
    )
    save(figure, args, "02_speed")


if __name__ == "__main__":
    main()
