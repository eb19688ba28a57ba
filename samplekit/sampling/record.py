"""What a run has so far: blocks in memory, the store on disk, and the checkpoint."""

import collections
import json
import math
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from samplekit.core.errors import StoreError
from samplekit.core.keys import NAME
from samplekit.sampling.engine import Block, Engine
from samplekit.sampling.labels import Labels
from samplekit.sampling.processes import Alone
from samplekit.sampling.run import SCHEMA, Draws, build_tree, group_attrs, open_tree, safe_name
from samplekit.sampling.settings import Settings, describe_kernel
from samplekit.sampling.stop import Converged
from samplekit.sampling.store import Store, Variable
from samplekit.sampling.task import ONE_BY_ONE

if TYPE_CHECKING:
    import xarray as xr

# A stored run larger than this is not kept in memory as well.
MEMORY_BYTES = 2**25


class Record:
    """Collects a run; `tree` gives it, `commit` stores it."""

    def __init__(
        self, settings: Settings, labels: Labels, stats: dict[str, Any], crew: Alone
    ) -> None:
        self.settings, self.labels, self.crew = settings, labels, crew
        self.stats = {
            n: Variable(
                tuple(s.shape),
                np.dtype(s.dtype),
                tuple(f"{n}_dim_{i}" for i in range(len(s.shape))),
            )
            for n, s in stats.items()
        }
        self.tick = 0
        self.finished = self.interrupted = False
        self.restarts: list[dict[str, int]] = []
        self.calm = False  # whether a look at the chains found none that might be lost
        self.seconds: dict[str, float] = collections.defaultdict(float)
        # Where the chains were when lost ones were last looked for; at first, the starts if given.
        self.anchor = np.zeros((settings.chains, 0))
        self.gaps: dict[int, float] = {}  # how far above the others some of them were then
        self.starts = self.anchor  # where they began, flat and unconstrained
        self.given = False
        self.store: Store | None = None
        self._groups = {name: Draws() for name in self.group_variables()}
        # Chains are cut at the same ticks: blocks of one group and start are one append.
        self._pending: dict[tuple[str, int], list[Block]] = collections.defaultdict(list)
        self._state: dict[str, np.ndarray] = {}
        self._state_attrs: dict[str, Any] = {}

    def group_variables(self) -> dict[str, dict[str, Variable]]:
        """Return the growing groups and what they hold."""
        groups = {"posterior": self.labels.variables, "sample_stats": self.stats}
        if self.settings.keep_warmup:
            groups |= {f"warmup_{name}": held for name, held in list(groups.items())}
        return {name: dict(held) for name, held in groups.items() if held}

    @property
    def in_memory(self) -> bool:
        """Whether all draws are kept in memory."""
        if self.crew.count > 1:  # each process has only its own
            return False
        held = [*self.labels.variables.values(), *self.stats.values()]
        one = sum(math.prod(v.shape) * v.dtype.itemsize for v in held)
        return self.store is None or one * self.settings.chains * self.settings.draws < MEMORY_BYTES

    def start_at(self, starts: np.ndarray | None, engine: Engine) -> None:
        """Take down the starts, so that even a stored run without a step can be resumed."""
        shape = (self.settings.chains, engine.task.dim)
        self.given = starts is not None
        self.anchor = np.zeros(shape, engine.task.dtype) if starts is None else starts
        self.starts = self.anchor

    def open_store(self, path: Any, engine: Engine) -> None:
        """Create the folder that the run is written to; of several processes, the first does."""
        if self.crew.index == 0:
            self._create_store(path, engine)
        self.crew.gather({})
        if self.store is None:
            self.store = Store.open(path)

    def _create_store(self, path: Any, engine: Engine) -> None:
        self.checkpoint(engine)
        variables = {
            group: {safe_name(n): v for n, v in held.items()}
            for group, held in self.group_variables().items()
        }
        constants = {}
        if self.labels.observed:
            constants["observed_data"] = {
                safe_name(n): pair for n, pair in self.labels.observed.items()
            }
        attrs = group_attrs(self.seconds, self.settings)
        self.store = Store.create(
            path,
            chains=self.settings.chains,
            groups=variables,
            coords=self.labels.coords,
            constants=constants,
            attrs=attrs,
            group_attrs=dict.fromkeys((*variables, *constants), attrs),
            # Processes share no file, whatever their number: network file systems lose such writes.
            chain_block=self.settings.chains if self._writes_all(engine) else 1,
            state=self._state,
            sampler_attrs=self._state_attrs,
        )

    def add(self, chain: int, tick: int, blocks: tuple[Block, Block]) -> None:
        """Take a block of values and statistics that begins at `tick`, its first chain `chain`."""
        warm = tick < self.settings.warmup
        if warm and not self.settings.keep_warmup:
            return
        start = tick if warm else tick - self.settings.warmup
        for name, block in zip(("posterior", "sample_stats"), blocks, strict=True):
            group = f"warmup_{name}" if warm else name
            if group not in self._groups:
                continue
            if self.in_memory:
                self._groups[group].add(chain, block)
            if self.store is not None:
                self._pending[group, start].append(block)

    def posterior(self) -> Block:
        """Return the draws so far, (chain, draw, ...)."""
        if self.store is None or self.in_memory:
            return self._groups["posterior"].joined()
        stored = self.store.read("posterior", self.lengths()["posterior"])
        return {n: stored[safe_name(n)] for n in self.labels.variables}

    def check_files(self, engine: Engine) -> None:
        """Refuse to go on from several machines with files that hold chains of more than one."""
        if self.store is None or self._writes_all(engine) or self.crew.hosts == 1:
            return
        if self.store.chain_block > 1:
            raise StoreError(
                f"The run at {str(self.store.path)!r} was begun by one process, and its files hold "
                f"all chains: {self.crew.hosts} machines cannot write to them safely. Resume with "
                "processes of one machine."
            )

    def _writes_all(self, engine: Engine) -> bool:
        return self.crew.count == 1 or engine.batch is not None

    def flush(self, engine: Engine) -> None:
        """Write the new draws of the chains that are run here, still unseen."""
        if self.store is None:
            return
        mine = range(self.settings.chains)
        if not self._writes_all(engine):
            mine = self.crew.share(mine)
        elif self.crew.index > 0:  # every process has all draws, and one is enough
            self._pending.clear()
        for (group, start), parts in self._pending.items():
            data = {safe_name(n): np.concatenate([p[n] for p in parts]) for n in parts[0]}
            self.store.append(group, start, slice(mine[0], mine[-1] + 1), data)
        self._pending.clear()

    def commit(self, engine: Engine) -> None:
        """Make all that was flushed visible, with the states that go on from there."""
        if self.store is None:
            return
        self.checkpoint(engine)
        if self.crew.count > 1:
            self.store.sums.adopt(self.crew.gather(self.store.sums.appended))
        if self.crew.index == 0:
            self.store.commit(
                self.lengths(),
                self._state,
                sampler_attrs=self._state_attrs,
                shared=self.crew.count > 1,
            )

    def lengths(self) -> dict[str, int]:
        """Return the draws that each group has by now."""
        warm = min(self.tick, self.settings.warmup)
        drawn = max(0, self.tick - self.settings.warmup)
        groups = self.group_variables()
        return {name: warm if name.startswith("warmup_") else drawn for name in groups}

    def checkpoint(self, engine: Engine) -> None:
        """Take down all that is needed to go on."""
        names = engine.leaf_names()
        self._state = dict(zip(names, engine.arrays(), strict=True))
        self._state["key"] = engine.task.words.copy()
        self._state["anchor"] = self.anchor
        self._state["starts"] = self.starts
        settings = self.settings
        self._state_attrs = {
            "schema": SCHEMA,
            "tick": self.tick,
            "draws": settings.draws,
            "warmup": settings.warmup,
            "chains": settings.chains,
            "thin": settings.thin,
            "keep_warmup": int(settings.keep_warmup),
            "given": int(self.given),
            "until": json.dumps(_until(settings)),
            "finished": int(self.finished),
            "interrupted": int(self.interrupted),
            "kernel": json.dumps(describe_kernel(engine.task.kernel)),
            "tunes": json.dumps(
                {
                    "step": getattr(engine.task.original, "tunes_step", False),
                    "metric": engine.plan.records,
                    "setting": _setting(engine.task.original),
                }
            ),
            "layout": ONE_BY_ONE if engine.batch is None else "batch",
            "stats": json.dumps(list(engine.stats)),
            "dim": engine.task.dim,
            "dtype": str(np.dtype(engine.task.dtype)),
            "goal": json.dumps(engine.plan.goal),
            "jax_version": jax.__version__,
            "key_impl": NAME,
            "restarts": json.dumps(self.restarts),
            "calm": int(self.calm),  # netCDF knows no booleans
            "gaps": json.dumps(self.gaps),
            "seconds": json.dumps({k: round(v, 4) for k, v in self.seconds.items()}),
        }

    def settle(self) -> None:
        """Mark the run as complete."""
        self.finished = True

    def close(self, engine: Engine) -> None:
        """Take the last checkpoint and bring the store up to date."""
        self.checkpoint(engine)
        if self.store is not None and self.crew.index == 0:
            attrs = group_attrs(self.seconds, self.settings)
            self.store.commit(
                self.lengths(),
                self._state,
                sampler_attrs=self._state_attrs,
                attrs=attrs,
                shared=self.crew.count > 1,
            )
            self.store.close()
        self.crew.gather({})  # what is stored is whole: all may open it

    def _stored_tree(self) -> "xr.DataTree":
        assert self.store is not None
        return open_tree(self.store.path)

    def tree(self) -> "xr.DataTree":
        """Return the run as a DataTree, from memory or, when large, from its store."""
        return self.memory_tree() if self.in_memory else self._stored_tree()

    def memory_tree(self) -> "xr.DataTree":
        """Return what is in memory as a DataTree."""
        groups = {}
        for name, held in self.group_variables().items():
            block = self._groups[name].joined()
            empty = {
                n: np.zeros((self.settings.chains, 0, *v.shape), v.dtype) for n, v in held.items()
            }
            groups[name] = block or empty
        return build_tree(
            groups,
            self.labels,
            sampler=self._state,
            sampler_attrs=self._state_attrs,
            attrs=group_attrs(self.seconds, self.settings),
        )

    def preload(self, blocks: dict[str, Block], parts: int) -> None:
        """Put in the draws that a resumed run already has, cut as its engine will go on."""
        for group, block in blocks.items():
            if not block or not next(iter(block.values())).shape[1]:
                continue
            each = self.settings.chains // parts
            for chain in range(0, self.settings.chains, each):
                self._groups[group].add(
                    chain, {n: a[chain : chain + each] for n, a in block.items()}
                )


def _until(settings: Settings) -> dict[str, float] | None:
    rule = settings.until
    return {"rhat": rule.rhat, "ess": rule.ess} if isinstance(rule, Converged) else None


def _setting(kernel: Any) -> str | None:
    metric = getattr(kernel, "metric", None)
    return metric if isinstance(metric, str) else None
