"""Contrastive divergence of an energy network, with any kernel and several kinds of chains."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from samplekit import losses
from samplekit.core.protocols import Numbers
from samplekit.core.pytree import as_function, pytree, static
from samplekit.estimators.matching import matching_score
from samplekit.kernels.base import improved, unlearned
from samplekit.sampling.program import move_chains
from samplekit.sampling.view import View
from samplekit.targets.density import Density
from samplekit.targets.space import Space
from samplekit.training.epochs import Row

# Chains this many times wider than the data have left it for good, and so have energies.
_RUN_AWAY, _GAP = 50.0, 1e3
# Acceptance below which chains do not move, and an epoch's chains tell nothing.
_STUCK = 0.01


@pytree
class Chains:
    """What contrastive divergence carries along: the tuned kernel, and a buffer of positions."""

    kernel: Any
    count: Array
    buffer: Array | None


@pytree
class ChainContrast:
    """Data against what a kernel makes of its chains.

    Notes
    -----
    The gradient is ∂/∂θ [mean E(x⁺) − mean E(x⁻)] with x⁻ after `steps` steps of the kernel on the
    present energy, from the batch ("data", Hinton 2002), from noise ("noise", Nijkamp et al. 2019)
    or from a buffer ("buffer", Tieleman 2008; Du and Mordatch 2019), whose chains go back to the
    slots they came from, a part of them being started anew. Data are standardized, and noise is
    standard normal.
    """

    kernel: Any
    penalty: Numbers
    refresh: Numbers
    space: Space = static()
    steps: int = static()
    begin: str = static()
    slots: int = static()
    goal: float | None = static()

    def start(self, key: Array, model: Any, data: Array, /) -> Chains:
        """Fill the buffer with noise."""
        del model
        shape = (self.slots, self.space.size)
        buffer = jax.random.normal(key, shape, data.dtype) if self.begin == "buffer" else None
        kernel = jax.tree.map(jnp.asarray, self.kernel)
        return Chains(kernel, jnp.zeros((), jnp.int32), buffer)

    def gradient(
        self, key: Array, model: Any, carry: Chains, batch: Array, /
    ) -> tuple[Any, Chains, dict[str, Array]]:
        """Run the chains on the present energy, then compare."""
        pick, fresh, run = jax.random.split(key, 3)
        rows = len(batch)
        noise = jax.random.normal(fresh, batch.shape, batch.dtype)
        slot = jnp.zeros((), jnp.int32)
        begin = noise if self.begin == "noise" else batch
        if carry.buffer is not None:
            slot = rows * jax.random.randint(pick, (), 0, len(carry.buffer) // rows)
            begin = jax.lax.dynamic_slice_in_dim(carry.buffer, slot, rows)
            anew = jax.random.uniform(jax.random.fold_in(fresh, 1), (rows, 1), batch.dtype)
            begin = jnp.where(anew < self.refresh, noise, begin)
        ends, kernel, numbers = self._run(run, model, carry, begin)

        def loss(net: Any) -> Array:
            return losses.contrastive(net, batch, ends, penalty=self.penalty)

        gradient = eqx.filter_grad(loss)(model)
        gap = losses.contrastive(model, batch, ends)
        spread = jnp.sqrt(jnp.mean(ends**2) / jnp.maximum(jnp.mean(batch**2), 1e-12))
        buffer = carry.buffer
        if buffer is not None:
            buffer = jax.lax.dynamic_update_slice_in_dim(buffer, ends, slot, 0)
        carry = Chains(kernel, carry.count + 1, buffer)
        return gradient, carry, {"energy_gap": gap, "chain_spread": spread} | numbers

    def _run(
        self, key: Array, model: Any, carry: Chains, begin: Array
    ) -> tuple[Array, Any, dict[str, Array]]:
        """Take the steps; the target is an argument, so its weights change and nothing else."""
        count = len(begin)
        view = View(Density(as_function(model), -1.0, self.space), bool(self.kernel.flat))
        target = view.for_kernel
        keys = jax.random.split(jax.random.fold_in(key, 2**31), count)
        first = jax.vmap(carry.kernel.init, (0, 0, None))(keys, begin, target)

        def step(at: tuple[Any, Any], index: Array) -> tuple[tuple[Any, Any], Array]:
            state, kernel = at
            here = (key, index, jnp.arange(count))
            state, stats = move_chains(count, view, kernel, state, at=here)
            rate = jnp.mean(stats.get("acceptance_rate", jnp.ones(())))
            if self.goal is not None:
                kernel = improved(kernel, stats, carry.count * self.steps + index, self.goal)
            return (state, kernel), rate

        (state, kernel), rates = jax.lax.scan(
            step, (first, carry.kernel), jnp.arange(self.steps, dtype=jnp.int32)
        )
        ends = jax.lax.stop_gradient(state.position)
        fine = jnp.all(jnp.isfinite(ends), axis=1, keepdims=True)
        numbers = {
            "acceptance": jnp.mean(rates),
            "lost_chains": jnp.mean(jnp.where(fine, 0.0, 1.0)),
        }
        return jnp.where(fine, ends, begin), kernel, numbers

    def held_out(self, key: Array, model: Any, data: Array, /) -> Array:
        """Return the Hyvärinen score of rows set aside: unlike the energy gap, it falls."""
        del key
        return matching_score(losses.score_of(model), data)

    def trouble(self, rows: list[Row], /) -> str | None:
        """Stop when chains or energies have gone astray."""
        row = rows[-1]
        cure = "Take a smaller learning_rate or kernel step, clip=0.1 or a larger energy_penalty."
        if row["chain_spread"] > _RUN_AWAY:
            return f"the chains are {row['chain_spread']:.3g} times as wide as the data. {cure}"
        if row["lost_chains"] > 0.5:
            return f"{row['lost_chains']:.0%} of the chains ended in numbers not finite. {cure}"
        if abs(row["energy_gap"]) > _GAP:
            return (
                f"the energies of data and chains differ by {row['energy_gap']:.3g}: the chains "
                f"no longer reach what the energy prefers. {cure}"
            )
        if row["acceptance"] < _STUCK:
            return (
                f"only {row['acceptance']:.2%} of the proposals are accepted, so the chains stand "
                f"still. Take a smaller kernel step, or leave it out: it is then tuned. {cure}"
            )
        return None


def fitted_kernel(kernel: Any, dim: int, dtype: Any) -> tuple[Any, float | None]:
    """Return the kernel with numbers for all its settings, and the acceptance to tune it to."""
    kernel = unlearned(kernel)  # data are standardized already
    tunes = bool(getattr(kernel, "tunes_step", False))
    goal = kernel.goal(dim) if tunes else None
    prepared = kernel.prepare(dim, dtype) if hasattr(kernel, "prepare") else kernel
    return prepared, goal
