"""A NumPyro model: named draws, predictive checks and leave-one-out, all by ArviZ's names."""

import warnings

import arviz as az
import numpy as np
import numpyro
import numpyro.distributions as dist
from _style import BLUE, ORANGE, SKY, VERMILION, options, plt, save

import samplekit as sk

EFFECT = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERROR = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
SCHOOLS = ["Choate", "Deerfield", "Andover", "Exeter"]
SCHOOLS += ["Hotchkiss", "Lawrenceville", "St. Paul's", "Mt. Hermon"]


def model(error, effect=None):
    """Coaching effects (Rubin 1981), non-centered: the schools share what they can."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(error)):
        standard = numpyro.sample("standard", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * standard)
        numpyro.sample("effect", dist.Normal(theta, error), obs=effect)


def main():
    args = options(__doc__)
    target = sk.from_numpyro(model, ERROR, effect=EFFECT)
    target = target.labeled(coords={"school": SCHOOLS})
    kernel = sk.NUTS(target_accept=0.95)
    run = sk.sample(target, kernel, draws=200 if args.quick else 2000, seed=1)
    run = sk.predictive(run, target, draws=8000)  # adds log_likelihood, prior, ...

    print(az.summary(run, var_names=["mu", "tau", "theta"], kind="stats"))
    with warnings.catch_warnings():  # eight points: ArviZ may call some of them influential
        warnings.simplefilter("ignore", UserWarning)
        print(az.loo(run))

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), width_ratios=[3, 2])
    place = np.arange(len(SCHOOLS))[::-1]
    predicted = run.posterior_predictive["effect"].values.reshape(-1, len(SCHOOLS))
    low, quarter, three, high = np.quantile(predicted, [0.05, 0.25, 0.75, 0.95], axis=0)
    left.hlines(place, low, high, color=SKY, lw=2, label="replicated, 90 %")
    left.hlines(place, quarter, three, color=BLUE, lw=5, label="replicated, 50 %")
    left.plot(EFFECT, place, "D", color=VERMILION, ms=6, label="observed")
    left.set_yticks(place, SCHOOLS)
    left.set(title="Replicated and observed effects", xlabel="effect (points)")
    left.set_ylim(-2.4, None)
    left.legend(ncols=3, loc="lower center", fontsize=9)
    for group, color in (("prior", ORANGE), ("posterior", BLUE)):
        tau = np.ravel(run[group]["tau"])
        bins = np.linspace(0, 25, 40)
        right.hist(tau[tau < 25], bins=bins, density=True, histtype="stepfilled", alpha=0.55,
                   color=color, label=group)  # fmt: skip
    right.set(title="Prior and posterior of tau", xlabel="spread between schools", ylabel="density")
    right.legend()
    save(figure, args, "04_eight_schools")


if __name__ == "__main__":
    main()
