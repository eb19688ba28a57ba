"""The three NumPyro models of the cold start; every contender gets the same function and data."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from tests.bench import targets

NAMES = ("schools", "logistic", "banana")


def build(name):
    """Return the model and its arguments."""
    return {
        "schools": lambda: (schools, targets.schools_data()),
        "logistic": lambda: (logistic, targets.logistic_data()),
        "banana": lambda: (banana, ()),
    }[name]()


def schools(y, sigma):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", len(y)):
        eta = numpyro.sample("eta", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * eta)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def logistic(x, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=jnp.asarray(x) @ beta), obs=y)


def banana():
    x1 = numpyro.sample("x1", dist.Normal(0.0, 10.0))
    numpyro.sample("x2", dist.Normal(0.03 * (x1**2 - 100.0), 1.0))
