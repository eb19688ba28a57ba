"""Five sick runs: what `sk.diagnose` finds in each, and how the finding leads to the cure."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from _style import COLORS, INK, SKY, VERMILION, contours, options, plt, save
from numpyro.infer.reparam import LocScaleReparam

import samplekit as sk
from samplekit.demo.targets import EFFECT, ERROR


def schools():
    """Eight schools, centered: the spread of theta depends on tau, and that is a funnel."""
    mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", 8):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("effect", dist.Normal(theta, ERROR), obs=EFFECT)


SCHOOLS = sk.from_numpyro(schools)
NON_CENTERED = sk.from_numpyro(numpyro.handlers.reparam(schools, {"theta": LocScaleReparam(0)}))
MODES = sk.targets.mixture([0.6, 0.4], [[-4.0, 0], [4.0, 0]], 1.0)
BELL, WELL = sk.targets.gaussian(2), sk.targets.double_well()
SLOPE = sk.targets.correlated(20, 0.95)
BOTH = dist.Normal(jnp.zeros(2), jnp.array([5.0, 1.5])).to_event(1)  # covers both modes
WIDE, MORE = sk.Independence(BOTH.sample, BOTH.log_prob), {"draws": 5000}
FAR = {"init": jnp.array([[0.0], [0.5], [-0.5], [9.0]])}  # one chain starts far out


def neck(ax, run):
    theta, tau = run.posterior["theta"].values[..., 0], run.posterior["tau"].values
    bad = run.sample_stats["diverging"].values
    ax.plot(theta[~bad], np.log(tau[~bad]), ".", ms=2, color=SKY, mew=0)
    ax.plot(theta[bad], np.log(tau[bad]), ".", color=VERMILION, label=f"{bad.sum()} divergences")
    ax.set(xlabel="theta[0]", ylabel="log tau", xlim=(-20, 45), ylim=(-5, 4))
    ax.legend(loc="lower right")


def by_chain(ax, run):
    contours(ax, MODES.log_density, (-8, 8, -4, 4))
    for x, color in zip(run.posterior["x"].values, COLORS, strict=False):
        ax.plot(*x[:: len(x) // 100].T, ".", ms=4, color=color, mew=0)


def bell(ax, run):
    x, grid = run.posterior["x"].values[..., 0].ravel(), np.linspace(-5, 5, 200)
    ax.hist(x, bins=grid[::4], density=True, color=SKY, label=f"variance {x.var():.2f}")
    ax.plot(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color=INK, label="exact, 1")
    ax.set(xlabel="x[0]", ylabel="density", ylim=(0, 0.62))
    ax.legend()


def trace(ax, run):
    ax.set_prop_cycle(color=COLORS[:4])
    ax.plot(run.posterior["x"].values[:, :400, 0].T, lw=0.7)
    ax.set(xlabel="draw", ylabel="x[0]")


CASES = {  # what is found: how to look at it, the sick run, the cured run
    "divergences": (neck, (SCHOOLS, sk.NUTS()), (NON_CENTERED, sk.NUTS(target_accept=0.95))),
    "modes-apart": (by_chain, (MODES, sk.NUTS()), (MODES, WIDE, MORE)),
    "unadjusted-bias": (bell, (BELL, sk.Langevin(1.0)), (BELL, sk.MALA(), MORE)),
    "frozen-chain": (trace, (WELL, sk.MALA(step_size=0.9), FAR), (WELL, sk.MALA(), FAR)),
    "ess-bulk": (trace, (SLOPE, sk.RandomWalk()), (SLOPE, sk.NUTS(), {"until": sk.Converged()})),
}


def main():
    args = options(__doc__)
    figure, axes = plt.subplots(2, 5, figsize=(13, 5.4))
    for column, (code, (draw, *runs)) in zip(axes.T, CASES.items(), strict=True):
        for ax, word, (target, kernel, *more) in zip(column, ("sick", "cured"), runs, strict=True):
            run = sk.sample(target, kernel, seed=2, progress=False, **dict(*more))
            # Bias shows only against the target; the rest shows in the draws.
            d = sk.diagnose(run, target if code == "unadjusted-bias" else None)
            title = f"{code}, {word}\n{type(kernel).__name__}: {'ok' if d.ok else 'not ok'}"
            print(f"\n{title}")
            for f in d.findings:
                print(f"  {f.code}: {f.seen}")
                print(f"    {f.why}\n    → {f.remedy}\n" * (f.code == code), end="")
            draw(ax, run)
            ax.set_title(title, fontsize=10)
    save(figure, args, "diagnose_five_sick_runs")


if __name__ == "__main__":
    main()
