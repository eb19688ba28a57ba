"""Several kernels in turn, as one."""

import dataclasses
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array

from samplekit.core.errors import KernelError
from samplekit.core.protocols import Position, Stats
from samplekit.core.pytree import pytree, static
from samplekit.core.stats import combine
from samplekit.kernels.base import Base, follow, improved, unlearned


@pytree
class Cycle(Base):
    """Apply kernels in turn; one round of them is one step.

    Parameters
    ----------
    kernels
        Two or more, in the order they move: `Cycle(sk.MALA(), sk.RandomWalk(5.0))`.

    Notes
    -----
    Invariant: the target, if it is for each kernel; a cycle is not reversible even where its parts
    are. Bias: that of its parts. Cost: the sum of its parts' (`n_steps`), and an evaluation
    wherever a kernel needs more of the state than the one before leaves (a score after a random
    walk). Statistics of the same name are joined as over thinned steps: acceptance is a
    mean, counts add up, of others the last kernel's is kept. Open step sizes are tuned in warm-up,
    each to its own acceptance; a metric is used if given, never learned. Tierney 1994,
    doi:10.1214/aos/1176325750.

    Examples
    --------
    >>> import samplekit as sk
    >>> kernel = sk.Cycle(sk.HMC(leapfrogs=3), sk.RandomWalk(8.0))  # local moves, and jumps
    >>> run = sk.sample(sk.targets.gaussian(2), kernel, draws=50, progress=False)
    """

    kernels: tuple[Any, ...]
    # Known once prepared: what warm-up aims for in each kernel, and whether it tunes it.
    goals: tuple[float | None, ...] = static(default=())
    tuned: tuple[bool, ...] = static(default=())

    requires: ClassVar[type] = object  # each part says what it needs

    def __init__(
        self,
        *given: Any,
        kernels: tuple[Any, ...] = (),
        goals: tuple[Any, ...] = (),
        tuned: tuple[bool, ...] = (),
    ) -> None:
        kernels = given or kernels  # JAX builds it again from its fields
        fields: dict[str, Any] = {"kernels": kernels, "goals": goals, "tuned": tuned}
        for field, value in fields.items():
            object.__setattr__(self, field, value)
        follow(self, kernels)
        wrong = [k for k in kernels if isinstance(k, type)]
        if not kernels or wrong:
            found = ", ".join(k.__name__ for k in wrong) or "nothing"
            raise KernelError(
                f"Cycle was given {found}. Give kernels: sk.Cycle(sk.MALA(), sk.RandomWalk(5.0))."
            )

    @property
    def exact(self) -> bool:
        """Exact if all parts are."""
        return all(getattr(k, "exact", True) for k in self.kernels)

    @property
    def parts(self) -> tuple[Any, ...]:
        """The kernels within."""
        return self.kernels

    @property
    def tunes_step(self) -> bool:
        """Whether warm-up has something to do."""
        return not self.tuned and any(getattr(k, "tunes_step", False) for k in self.kernels)

    def goal(self, dim: int) -> None:
        """Return None: each kernel has its own goal, see `learn`."""
        del dim

    def prepare(self, dim: int, dtype: Any) -> Self:
        """Prepare each kernel."""
        if self.tuned:
            return self
        plain = [unlearned(k) for k in self.kernels]
        tuned = tuple(bool(getattr(k, "tunes_step", False)) for k in plain)
        goals = tuple(k.goal(dim) if t else None for k, t in zip(plain, tuned, strict=True))
        ready = [k.prepare(dim, dtype) if hasattr(k, "prepare") else k for k in plain]
        return type(self)(*ready, goals=goals, tuned=tuned)

    @classmethod
    def rebuilt(cls, parts: list[Any], settings: dict[str, Any]) -> Self:
        """Return a kernel as the user gave it, from what a run says of it; numbers come later."""
        del settings
        return cls(*parts)

    def _with(self, kernels: list[Any]) -> Self:
        return type(self)(*kernels, goals=self.goals, tuned=self.tuned)

    def rescaled(self, factor: Any) -> Self:
        """Return the kernel for a target `factor` times as wide."""
        return self._with([k.rescaled(factor) if _ours(k) else k for k in self.kernels])

    def tuning(self, *, on: Array) -> Self:
        """Tell the kernels that learn."""
        pairs = zip(self.kernels, self.tuned, strict=True)
        return self._with([k.tuning(on=on) if tuned else k for k, tuned in pairs])

    def learn(self, stats: Stats, count: Array) -> Self:
        """Tune each kernel from its own statistics."""
        kernels = list(self.kernels)
        for i, (goal, tuned) in enumerate(zip(self.goals, self.tuned, strict=True)):
            own = f"_{i}_"
            mine = {n.removeprefix(own): v for n, v in stats.items() if n.startswith(own)}
            if tuned:
                kernels[i] = improved(kernels[i], mine, count, goal)
        return self._with(kernels)

    def init(self, key: Array, x: Position, target: Any, /) -> Any:
        """Return the state that the first kernel needs."""
        return self.kernels[0].init(key, x, target)

    def step(self, key: Array, state: Any, target: Any, /) -> tuple[Any, Stats]:
        """Take a step of each kernel."""
        stats: Stats = {}
        keys = jax.random.split(key, 2 * len(self.kernels) + 1)
        private: Stats = {}
        calls = jnp.zeros((), jnp.int32)
        for i, kernel in enumerate(self.kernels):
            state = _handed(kernel, keys[2 * i], state, target)
            state, new = kernel.step(keys[2 * i + 1], state, target)
            seen = {n: v for n, v in new.items() if not n.startswith("_")}
            joined = combine({**seen, **stats}, seen, jnp.zeros((), bool), jnp.asarray(i + 1))
            stats = {**stats, **{n: joined[n] if n in stats else seen[n] for n in seen}}
            private |= {f"_{i}_{name}": value for name, value in new.items()}
            calls = calls + new.get("n_steps", jnp.ones((), jnp.int32))
        stats["n_steps"] = calls
        return _handed(self.kernels[0], keys[-1], state, target), {**stats, **private}


def _ours(kernel: Any) -> bool:
    return isinstance(kernel, Base)


def _handed(kernel: Any, key: Array, state: Any, target: Any) -> Any:
    """Return the state as `kernel` needs it: of what is there, or evaluated anew."""
    needed = jax.eval_shape(kernel.init, key, state.position, target)
    if type(needed) is type(state):
        return state
    names = [f.name for f in getattr(needed, "__dataclass_fields__", {}).values()]
    if names and all(getattr(state, n, None) is not None for n in names):
        return dataclasses.replace(needed, **{n: getattr(state, n) for n in names})
    return kernel.init(key, state.position, target)
