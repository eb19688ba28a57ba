"""What a Boltzmann machine can be trained by: the Fisher score, or contrastive divergence."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from samplekit.core.pytree import pytree, static
from samplekit.estimators.rbm_fisher import fisher_gradient, takes_direct
from samplekit.targets.boltzmann import BernoulliBernoulli, GaussBernoulli
from samplekit.training.epochs import Row

type Machine = GaussBernoulli | BernoulliBernoulli

# Chains this many times wider than the data have left it for good.
_RUN_AWAY = 100.0


@pytree
class Fisher:
    """The Fisher score in closed form; real visible units only."""

    unit: bool = static()

    def trains(self, model: GaussBernoulli, /) -> GaussBernoulli:
        """Leave unit variances alone."""
        return _trained(model, unit=self.unit)

    def by_columns(self, model: GaussBernoulli, /) -> bool:
        """Lay the weights as the products of the direct form take them fastest."""
        return takes_direct(model)

    def start(self, key: Array, model: Any, data: Any, /) -> None:
        """Carry nothing."""
        del key, model, data

    def gradient(
        self, key: Array, model: GaussBernoulli, carry: None, batch: Array, /
    ) -> tuple[Any, None, dict[str, Array]]:
        """Return the closed-form gradient."""
        del key
        loss, gradient = fisher_gradient(model, batch, unit=self.unit)
        return gradient, carry, {"loss": loss}

    def held_out(self, key: Array, model: GaussBernoulli, data: Array, /) -> Array:
        """Return the Fisher score of rows that were set aside."""
        del key
        return fisher_gradient(model, data, unit=self.unit).loss

    def trouble(self, rows: list[Row], /) -> None:
        """See none: the trainer itself stops at numbers that are not finite."""
        del rows


@pytree
class Contrastive:
    """Contrastive divergence: data against what Gibbs steps make of data, or of lasting chains.

    Notes
    -----
    The gradient is ∂/∂θ [mean F(v⁺) − mean F(v⁻)], with v⁻ after `steps` sweeps from the batch
    (Hinton 2002) or from `chains` that go on from batch to batch (Tieleman 2008). No loss falls:
    `energy_gap` is mean F(v⁺) − mean F(v⁻), near zero when all is well.
    """

    unit: bool = static()
    steps: int = static()
    chains: int = static()  # 0: start from the batch

    def trains(self, model: Machine, /) -> Machine:
        """Leave unit variances alone."""
        return _trained(model, unit=self.unit)

    def start(self, key: Array, model: Machine, data: Array, /) -> Array | None:
        """Start the lasting chains at rows of the data, which come in random order."""
        del key, model
        return data[jnp.arange(self.chains) % len(data)] if self.chains else None

    def gradient(
        self, key: Array, model: Machine, carry: Array | None, batch: Array, /
    ) -> tuple[Any, Array | None, dict[str, Array]]:
        """Return the difference of two averages of ∂F/∂θ."""
        begin = batch if carry is None else carry

        def sweep(v: Array, key: Array) -> tuple[Array, None]:
            return jax.vmap(model.sweep)(model.noise(key, len(v)), v), None

        rows, _ = jax.lax.scan(sweep, begin, jax.random.split(key, self.steps))

        def gap(machine: Machine) -> Array:
            data, chains = (jnp.mean(jax.vmap(machine.log_density)(v)) for v in (batch, rows))
            return chains - data

        value, gradient = jax.value_and_grad(gap)(model)
        numbers = {"energy_gap": value}
        if carry is None:
            numbers["reconstruction"] = jnp.mean((rows - begin) ** 2)
        elif isinstance(model, GaussBernoulli):
            given = jnp.mean(jnp.exp(model.log_variance))
            numbers["chain_spread"] = jnp.std(rows) / jnp.sqrt(jnp.var(batch) + given)
        carry = carry if carry is None else rows
        return gradient, carry, numbers

    def held_out(self, key: Array, model: Machine, data: Array, /) -> Array:
        """Return the Fisher score, or minus the pseudo-likelihood of binary units."""
        del key
        if isinstance(model, BernoulliBernoulli):
            return -jnp.mean(jax.lax.map(model.pseudo_log_likelihood, data, batch_size=256))
        return fisher_gradient(model, data).loss

    def trouble(self, rows: list[Row], /) -> str | None:
        """Stop when the lasting chains have left the data for good."""
        spread = rows[-1].get("chain_spread", 1.0)
        if spread < _RUN_AWAY:
            return None
        return (
            f"the persistent chains spread {spread:.3g} times as wide as the data: the machine's "
            "density has gone astray. Take a smaller learning_rate, clip=1.0 or method='fisher'."
        )


def _trained(model: Machine, *, unit: bool) -> Any:
    """Say of each parameter whether it is trained."""
    every: Any = jax.tree.map(lambda _: True, model)
    return dataclasses.replace(every, log_variance=False) if unit else every
