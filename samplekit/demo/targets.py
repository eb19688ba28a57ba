"""What the demo samples: two modes, the banana, a neural network, eight schools."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array

import samplekit as sk

SCHOOLS = ["Choate", "Deerfield", "Andover", "Exeter"]
SCHOOLS += ["Hotchkiss", "Lawrenceville", "St. Paul's", "Mt. Hermon"]
EFFECT = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERROR = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


@dataclasses.dataclass(frozen=True)
class Part:
    """One row of the table: a target, a kernel, and how much of it."""

    name: str
    title: str
    target: Any
    kernel: Any
    draws: int

    @property
    def store(self) -> str:
        """The name of the stored run."""
        return f"{self.name}.zarr"


def two_modes(x: Array) -> Array:
    """Return log of 3 exp(−(x+2)²/2) + exp(−(x−4)²/8), not normalized."""
    left, right = jnp.log(3.0) - (x[0] + 2) ** 2 / 2, -((x[0] - 4) ** 2) / 8
    return jnp.logaddexp(left, right)


class NetworkEnergy(eqx.Module):
    """A small neural network as an energy; the quadratic keeps it normalizable."""

    net: eqx.nn.MLP

    def __init__(self, seed: int = 5) -> None:
        self.net = eqx.nn.MLP(2, "scalar", 32, 2, jnp.sin, key=jax.random.key(seed))

    def __call__(self, x: Array) -> Array:
        """Return the energy at x."""
        return 7.0 * self.net(2.5 * x) + (x**2).sum() / 6


def eight_schools(error: np.ndarray, effect: np.ndarray | None = None) -> None:
    """Model coaching effects in eight schools (Rubin 1981), non-centered."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", len(error)):
        standard = numpyro.sample("theta_standard", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * standard)
        numpyro.sample("effect", dist.Normal(theta, error), obs=effect)


def parts(*, quick: bool) -> list[Part]:
    """Return what the demo samples."""
    few = 50 if quick else 1
    banana = sk.targets.banana()
    schools = sk.from_numpyro(eight_schools, ERROR, effect=EFFECT)
    schools = schools.labeled(coords={"school": SCHOOLS})
    walk, mala, nuts = sk.RandomWalk(), sk.MALA(), sk.NUTS(target_accept=0.95)
    return [
        Part("two-modes", "two modes", sk.from_log_density(two_modes, 1), walk, 100_000 // few),
        Part("banana-mala", "banana", banana, mala, 50_000 // few),
        Part("banana-nuts", "banana", banana, nuts, 5000 // few),
        Part("network", "neural network", sk.from_energy(NetworkEnergy(), 2), nuts, 5000 // few),
        Part("eight-schools", "eight schools", schools, nuts, 5000 // few),
    ]
