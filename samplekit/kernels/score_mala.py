"""A Metropolis-like correction for a target that is known by its score alone."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from samplekit.core.errors import KernelError
from samplekit.core.protocols import Position, ScoreTarget, Stats
from samplekit.core.pytree import pytree, static
from samplekit.kernels.base import (
    Noise,
    NoiseKernel,
    ScoreState,
    check_acceptance,
    check_positive,
    metric_of,
    metropolis,
    noise_rows,
    score_state,
)


@pytree
class ScoreMALA(NoiseKernel):
    """Metropolis-like MALA from a score: the log ratio is a line integral of the score.

    Parameters
    ----------
    step_size
        η as for `MALA`; None tunes it to (estimated) acceptance 0.8.
    rule
        "simpson" (nodes 0, ½, 1: one score besides that of the proposal) or "gauss"
        (Gauss–Legendre with `nodes` interior nodes).
    nodes
        Number of Gauss–Legendre nodes, at least 2.
    target_accept, metric
        As for `MALA`.

    Notes
    -----
    Δlog p ≈ ∫₀¹ s(x + tΔ)·Δ dt, then accepted as in `MALA`. This is Metropolis-*like*: exact, up to
    the error of the quadrature, only where the score is the gradient of something. A learned score
    is in general no gradient; there is then no target and the acceptance depends on the path. The
    two-node trapezoid is not offered: on the nodes of a leapfrog step it cancels
    against the kinetic energy and carries no information on p. Cost: 2 scores a step with Simpson,
    1 + nodes with Gauss. Sjöberg et al. 2023, arXiv:2307.14012.

    How far the score is from a gradient is a statistic, computed only where it is asked for by
    name, `sample(..., stats=["acceptance_rate", "closed_loop_work"])`: the work ∮ s·dx around the
    triangle x → x + Δ → x + ηAw → x, in nats, each edge by the kernel's own rule. Δ is the step, A
    the root of the metric, and w = (v₂, …, v_d, −v₁) the velocity turned: of the same law as v and
    uncorrelated with it. The work is zero for a gradient, up to the error of the rule; where s has
    the derivative S + K, K antisymmetric, it is ηAw·KΔ to leading order, of size η². Its root mean
    square is by how much one step's Δlog p depends on the path. It costs 3 scores a step more
    with Simpson, 2 nodes with Gauss, which `n_steps` leaves out. `sk.closed_loop_work` measures
    the same on loops as wide as the target.

    Examples
    --------
    >>> import samplekit as sk
    >>> target = sk.from_score(lambda x: -(x**3) - x, dim=1)
    >>> run = sk.sample(target, sk.ScoreMALA(), draws=50, progress=False)
    """

    step_size: Any = None
    rule: str = static(default="simpson")
    nodes: int = static(default=2)
    target_accept: float | None = static(default=None)
    metric: Any = "auto"

    requires: ClassVar[type] = ScoreTarget

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        check_positive("step_size", self.step_size, self)
        check_acceptance(self.target_accept, self)
        if self.rule not in ("simpson", "gauss"):
            raise KernelError(
                f'ScoreMALA(rule={self.rule!r}) is not known: use "simpson" or "gauss".'
            )
        if self.nodes < 2:
            raise KernelError("ScoreMALA needs at least 2 Gauss–Legendre nodes.")

    @property
    def exact(self) -> bool:
        """Exact only where the score is a gradient, so not promised."""
        return False

    def first_step(self, dim: int) -> float:
        """Return d^(−1/6), as MALA."""
        return dim ** (-1 / 6)

    def goal(self, dim: int) -> float:
        """Return an acceptance rate above MALA's: the quadrature needs the shorter steps.

        At 0.574 on a mixture of two modes Simpson's error moved 5 to 8 % of the mass to the other
        mode, silently; at 0.8 nothing of that was left.
        """
        del dim
        return self.target_accept or 0.8

    def init(self, key: Array, x: Position, target: ScoreTarget, /) -> ScoreState:
        """Evaluate the start."""
        del key
        return score_state(x, target)

    def noise(self, key: Array, x: Position, shape: tuple[int, ...] = ()) -> Noise:
        """Draw the velocity and the acceptance threshold."""
        v, u = noise_rows(key, x, shape)
        return (v, jnp.log(u[..., 0])), None

    def move(
        self, noise: Noise, state: ScoreState, target: ScoreTarget, /
    ) -> tuple[ScoreState, Stats]:
        """Leapfrog once, accept or reject by the line integral."""
        (v, log_u), _ = noise
        eta, metric = self.step_size, metric_of(self)
        x, unravel = ravel_pytree(state.position)
        s = ravel_pytree(state.score)[0]
        half = v + 0.5 * eta * metric.pull(s)
        delta = eta * metric.apply(half)
        proposal = score_state(unravel(x + delta), target)
        s_end = ravel_pytree(proposal.score)[0]
        end = half + 0.5 * eta * metric.pull(s_end)

        def score(at: Array) -> Array:
            return ravel_pytree(target.score(unravel(at)))[0]

        work = self._work(score, (x, delta), (s, s_end))
        log_ratio = work + 0.5 * jnp.sum(v * v - end * end)
        state, stats = metropolis(log_u, log_ratio, proposal, state)
        y, z = x + delta, x + eta * metric.apply(jnp.concatenate([v[1:], -v[:1]]))
        s_third = score(z)
        around = work + self._work(score, (y, z - y), (s_end, s_third))
        around = around + self._work(score, (z, x - z), (s_third, s))
        n_steps = jnp.asarray(2 if self.rule == "simpson" else 1 + self.nodes, jnp.int32)
        own = {"n_steps": n_steps, "step_size": eta, "closed_loop_work": around}
        return state, {**stats, **own}

    def _work(
        self,
        score: Callable[[Array], Array],
        edge: tuple[Array, Array],
        ends: tuple[Array, Array],
    ) -> Array:
        """Return ∫ s·dx along the edge from x to x + delta, by the scores there and between."""
        (x, delta), (first, last) = edge, ends

        def slope(t: float) -> Array:
            return jnp.sum(score(x + t * delta) * delta)

        if self.rule == "simpson":
            return (jnp.sum(first * delta) + 4 * slope(0.5) + jnp.sum(last * delta)) / 6
        at, weights = np.polynomial.legendre.leggauss(self.nodes)
        parts = [
            w / 2 * slope((1 + t) / 2) for t, w in zip(at.tolist(), weights.tolist(), strict=True)
        ]
        return sum(parts[1:], parts[0])
