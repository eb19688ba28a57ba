"""What is to be run, and how its chains lie: one by one, or as one batch."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from samplekit.kernels.base import NoiseKernel
from samplekit.sampling.cost import arithmetic
from samplekit.sampling.program import any_key, start_state, state_shape, stats_shape
from samplekit.sampling.settings import Settings
from samplekit.sampling.spread import spans_processes
from samplekit.sampling.tall import has_tall_product
from samplekit.sampling.view import View

# Up to this many chains most kernels run chain by chain on a CPU; beyond, most (`batched`) do not.
FEW_CHAINS = 16
# Numbers that a log density and its score work out (`cost.arithmetic`), up to which a few chains in
# lockstep are faster as one batch. Measured with HMC, 4 chains on 2 cores, batch for one by one:
# 0.4 to 0.9 times the time below 2,000 (eight schools, the banana, Gaussians of up to 300
# dimensions), 0.9 to 1.5 times for regressions above.
CHEAP = 2000
# Chains of a block of a batch: few enough that what a step works out stays in a core's cache, and
# enough that a call of the program is worth it. 16,384 chains of a network on 2 cores take 0.67
# times as long in blocks of 512 to 2,048 as in one batch whose products all cores share.
LEAST_BLOCK, MOST_BLOCK = 256, 1024
ONE_BY_ONE = "chain by chain"  # the name of that layout in a checkpoint

type Shapes = tuple[Any, tuple[jax.ShapeDtypeStruct, ...], jax.ShapeDtypeStruct]


@dataclasses.dataclass(frozen=True)
class Task:
    """All that an engine needs to know."""

    view: View
    kernel: Any  # prepared
    original: Any  # as the user gave it: what is open in it is tuned
    settings: Settings
    words: np.ndarray  # of the key of Threefry that all noise comes from
    stats: Sequence[str] | None  # names to keep; None: all
    dim: int
    dtype: Any
    devices: Sequence[Any] | None = None
    layout: str | None = None  # as a run was begun; None: what is fastest

    @property
    def goal(self) -> float | None:
        """Acceptance rate for dual averaging; None where the step size is not tuned by it."""
        if not getattr(self.original, "tunes_step", False):
            return None
        return self.original.goal(self.dim)

    @property
    def tunes(self) -> bool:
        """Whether warm-up changes the kernel at all."""
        return getattr(self.original, "tunes_step", False) or self.learns_metric

    @property
    def learns_metric(self) -> bool:
        """Whether windows end with a new metric."""
        return getattr(self.original, "tunes_metric", False)

    @property
    def _on_cpu(self) -> bool:
        return (self.devices or jax.devices())[0].platform == "cpu"

    @functools.cached_property
    def together(self) -> bool:
        """Whether a few chains are one batch on one device, and pool what they learn.

        So they are where their kernel keeps them in step and a score takes less than what a loop
        does around it: four chains then cost what one does.
        """
        few = 1 < self.settings.chains <= FEW_CHAINS
        if not few or not self._on_cpu or not getattr(self.kernel, "few_batched", False):
            return False
        if self.layout is not None:
            return self.layout != ONE_BY_ONE
        return _start_cost(*self._shapes(self.view))[0] <= CHEAP

    @functools.cached_property
    def arranged(self) -> View:
        """The target as its program gets it: how it computes products is chosen for the layout."""
        if not self.view.flat or not self.chain_by_chain:
            return self.view
        _, tall = _start_cost(*self._shapes(self.view))
        return dataclasses.replace(self.view, tall=tall) if tall else self.view

    def step_shapes(self, chains: int | None) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Return the shapes of a state, of what a draw shows, and of the statistics of a step."""
        return _step_shapes(*self._shapes(self.arranged), chains, self.block is not None)

    def _shapes(self, view: View) -> Shapes:
        """Return structure and shapes of view and kernel, and of a flat start: hashable."""
        leaves, treedef = jax.tree.flatten((view, self.kernel))
        types = (jax.dtypes.canonicalize_dtype(jnp.result_type(a)) for a in leaves)
        shapes = [jax.ShapeDtypeStruct(np.shape(a), t) for a, t in zip(leaves, types, strict=True)]
        return treedef, tuple(shapes), jax.ShapeDtypeStruct((self.dim,), self.dtype)

    @property
    def chain_by_chain(self) -> bool:
        """Whether chains run one by one in threads rather than as one batch."""
        if not self._on_cpu or self.together:
            return False
        return self.settings.chains <= FEW_CHAINS or not getattr(self.kernel, "batched", False)

    @functools.cached_property
    def block(self) -> int | None:
        """Chains of a block where a batch runs block by block in threads; None where it is whole.

        It is whole where chains learn from each other, or the devices are not the cores of this
        process. The size does not depend on the number of cores: nor do the draws.
        """
        here = self._on_cpu and not spans_processes(self.devices)
        if not here or not isinstance(self.kernel, NoiseKernel) or self.chain_by_chain:
            return None
        if self.together or (self.tunes and self.settings.warmup > 0):
            return None
        chains = self.settings.chains
        sizes = range(min(MOST_BLOCK, chains // 2), LEAST_BLOCK - 1, -1)
        return next((n for n in sizes if chains % n == 0), None)


@functools.lru_cache(maxsize=64)
def _start_cost(treedef: Any, leaves: tuple[Any, ...], start: Any) -> tuple[float, bool]:
    """Return how many numbers a start works out, and whether by products with a tall matrix."""
    view, kernel = jax.tree.unflatten(treedef, leaves)
    traced = jax.make_jaxpr(start_state)(view, kernel, any_key(), start).jaxpr
    return arithmetic(traced), has_tall_product(traced)


@functools.lru_cache(maxsize=64)
def _step_shapes(
    treedef: Any, leaves: tuple[Any, ...], start: Any, *lot: Any
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    (view, kernel), (chains, block) = jax.tree.unflatten(treedef, leaves), lot
    one = state_shape(view, kernel, start)
    lead = () if chains is None else (chains,)
    state = jax.tree.map(lambda s: jax.ShapeDtypeStruct((*lead, *s.shape), s.dtype), one)
    shown = jax.eval_shape(view.shown, one.position)
    return one, shown, stats_shape(chains, view, kernel, state, block=block)
