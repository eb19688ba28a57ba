"""The training loop: one compiled scan an epoch, everything else between epochs."""

import dataclasses
import functools
from pathlib import Path
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from samplekit.core.errors import SettingsError, TrainingError
from samplekit.core.keys import from_seed
from samplekit.core.pytree import pytree
from samplekit.sampling.cache import use_cache
from samplekit.sampling.compiled import compiled
from samplekit.sampling.devices import deal, read_devices, row_mesh, row_sharding
from samplekit.sampling.loop import hold_ctrl_c
from samplekit.sampling.packing import Packing
from samplekit.sampling.progress import Progress
from samplekit.training.batches import count, order, shuffled
from samplekit.training.checkpoint import Checkpoint, describe
from samplekit.training.epochs import Epochs, Row
from samplekit.training.plan import Plan

type PyTree = Any
# Beyond so many numbers, to cut an array out of a vector and to put it back takes longer than
# another loop of the optimizer.
LONG_LEAF = 4096


class Objective(Protocol):
    """What is minimised. Objectives are pytrees: their arrays are data of the one program.

    One that leaves part of a model alone has `trains(model)`, a pytree of booleans as wide as it;
    one whose products are faster so has `by_columns(model)`: whether matrices lie in columns.
    """

    def start(self, key: Array, model: PyTree, data: PyTree, /) -> PyTree:
        """Return what is carried from batch to batch, such as persistent chains, or None."""
        ...

    def gradient(
        self, key: Array, model: PyTree, carry: PyTree, batch: PyTree, /
    ) -> tuple[PyTree, PyTree, dict[str, Array]]:
        """Return the gradient, what is carried on, and numbers for the history ("loss" is one)."""
        ...

    def held_out(self, key: Array, model: PyTree, data: PyTree, /) -> Array:
        """Return the loss on data that are not trained on."""
        ...

    def trouble(self, rows: list[Row], /) -> str | None:
        """Say, from the history so far, why training must stop; None if it need not."""
        ...


@pytree
class State:
    """All that changes while training; what a checkpoint holds."""

    params: PyTree  # packed, where the plan allows it
    optimizer: PyTree
    average: PyTree  # moving average of the parameters; None where it is not kept
    best: PyTree  # the parameters with the lowest held-out loss; None where not asked for
    best_loss: Array
    carry: PyTree
    step: Array


@pytree
class _Fixed:
    """All that stays during an epoch; what is not an array is static to the compiled program."""

    objective: Any
    data: PyTree
    held_out: PyTree
    key: Array
    steps: np.ndarray
    rate: np.ndarray
    decay: np.ndarray
    code: Any  # the parts of the model that are not trained
    transformation: Any
    shape: Any
    batch: int
    packing: Packing | None
    mesh: Any = None  # its devices share every batch

    def parts(self, params: PyTree) -> PyTree:
        return params if self.packing is None else self.packing.unpack(params)

    def model(self, params: PyTree) -> PyTree:
        return eqx.combine(self.parts(params), self.code)


@dataclasses.dataclass
class Trained:
    """What comes out of `train`."""

    model: PyTree
    history: list[Row]
    carry: PyTree
    stopped: str = ""  # why training ended before its last epoch


def train(
    objective: Objective,
    model: PyTree,
    data: PyTree,
    plan: Plan,
    *,
    held_out: PyTree = None,
    seed: int = 0,
    progress: bool = True,
    checkpoint: str | Path | None = None,
    devices: Any = None,
) -> Trained:
    """Minimise an objective over mini-batches.

    Parameters
    ----------
    objective
        Gradients of a batch, and what they carry along; see `Objective`.
    model
        A pytree whose floating-point arrays are trained, such as an Equinox module.
    data
        An array, or a pytree of arrays, with one row a sample.
    plan
        Epochs, batches, optimizer and when to stop.
    held_out
        Data that are not trained on: their loss is in the history, and decides early stopping.
    seed
        Gives the order of the rows and all noise; epoch e uses (seed, e) only, so that a training
        which is continued equals one that was never interrupted, bit for bit.
    progress
        Show a bar.
    checkpoint
        A file: written as training proceeds, and read at the start if it is there.
    devices
        A number of devices, a list or a mesh: each takes a part of every batch, as many as divide
        it; of several processes all have the same data. None takes those of this process.

    Raises
    ------
    TrainingError
        When a number is not finite or the objective sees trouble; it holds the history.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from samplekit.core.pytree import pytree
    >>> @pytree
    ... class Mean:
    ...     def start(self, key, model, data):
    ...         return None
    ...     def gradient(self, key, model, carry, batch):
    ...         loss = jnp.mean((batch - model[None]) ** 2)
    ...         return 2 * (model - batch.mean(0)), carry, {"loss": loss}
    ...     def held_out(self, key, model, data):
    ...         return jnp.mean((data - model[None]) ** 2)
    ...     def trouble(self, rows):
    ...         return None
    >>> X = jnp.arange(8.0).reshape(8, 1)
    >>> plan = Plan(epochs=200, batch_size=8, learning_rate=0.1, optimizer="sgd")
    >>> round(float(train(Mean(), jnp.zeros(1), X, plan, progress=False).model[0]), 3)
    3.5
    """
    if plan.patience is not None and held_out is None:
        raise SettingsError(
            f"patience={plan.patience} needs rows that are not trained on: give held_out, or leave "
            "patience out."
        )
    use_cache()
    trains = getattr(objective, "trains", None)
    params, code = eqx.partition(model, trains(model) if trains else eqx.is_inexact_array)
    columns = getattr(objective, "by_columns", lambda model: False)(model)
    together = {"joined": True, "columns": columns, "most": LONG_LEAF}
    packing = Packing.of(params, **together) if plan.elementwise else None
    fixed = _fixed((objective, code, packing), (data, held_out), plan, seed)
    devices = read_devices(devices)
    if devices is not None or jax.default_backend() != "cpu":
        fixed = dataclasses.replace(fixed, mesh=row_mesh(devices, fixed.batch))
    # Taken apart once: what is code must be hashed by every call of a compiled program.
    static, arrays = _taken_apart(fixed)
    program = static, deal(arrays, fixed.mesh, axis=None)
    begin = deal(packing.pack(params) if packing else params, fixed.mesh, axis=None)
    state, rows, stopped = _begin(*program, begin, _extras(plan)), [], ""
    facts = {"seed": seed} | describe(objective, (data, held_out)) if checkpoint else {}
    if packing and checkpoint:
        facts["a model of shapes"] = [list(shape) for shape, _ in packing.leaves]
        facts["matrices by columns"] = packing.columns
    saved = Checkpoint(checkpoint, plan, facts) if checkpoint else None
    if saved and (found := saved.read(state)):
        state, rows = found
        stopped = _reason(plan, rows)
    with Progress(plan.epochs, enabled=progress, unit="epochs") as bar, hold_ctrl_c() as asked:
        bar.update(len(rows))
        bar.phase("training")
        run, until = functools.partial(_epoch, *program), len(rows) if stopped else plan.epochs
        epochs = Epochs(run, lambda e: order(count(data), fixed.batch, (seed, e)), state, rows)
        while len(rows) < until:
            # Who may have to stop after an epoch, or to write it down, cannot begin the next.
            epochs.begin(until, ahead=plan.patience is None and saved is None)
            row = epochs.finish()
            _refuse_trouble(objective, rows)
            bar.update(len(rows), note=_note(row))
            interrupted = asked.is_set() and epochs.begun < until
            stopped = stopped or _reason(plan, rows, interrupted=interrupted)
            until = epochs.begun if stopped else until
            if saved:
                saved.write(epochs.state, rows, last=len(rows) == until)
        state = epochs.state
    # Cut into pieces on the host, which compiles nothing.
    kept = jax.device_put(fixed.parts(_kept(state, rows)))
    return Trained(eqx.combine(kept, code), rows, state.carry, stopped)


def _fixed(
    what: tuple[Objective, Any, Packing | None],
    data: tuple[PyTree, PyTree],
    plan: Plan,
    seed: int,
) -> _Fixed:
    objective, code, packing = what
    rows = count(data[0])
    batch = min(plan.batch_size, rows)
    return _Fixed(
        objective=objective,
        data=shuffled(data[0], batch, seed),
        held_out=jax.tree.map(jnp.asarray, data[1]),
        key=from_seed(seed),
        steps=np.asarray(plan.epochs * (rows // batch), np.float32),
        rate=np.asarray(plan.rate, np.float32),
        decay=np.asarray(plan.average, np.float32),
        code=code,
        transformation=plan.transformation,
        shape=plan.shape,
        batch=batch,
        packing=packing,
    )


def _taken_apart(fixed: _Fixed) -> tuple[Any, _Fixed]:
    """Return what is code, hashable, and the arrays: `_Fixed` as `jax.jit` takes it."""
    arrays, code = eqx.partition(fixed, eqx.is_array)
    leaves, structure = jax.tree.flatten(code)
    return (tuple(leaves), structure), arrays


def _put_together(code: Any, arrays: _Fixed) -> _Fixed:
    leaves, structure = code
    return eqx.combine(arrays, jax.tree.unflatten(structure, leaves))


def _extras(plan: Plan) -> tuple[bool, bool]:
    """Say whether an average and the best parameters are kept."""
    return plan.average > 0, plan.patience is not None


@functools.partial(jax.jit, static_argnums=(0, 3))
def _begin(code: Any, arrays: _Fixed, params: PyTree, extras: tuple[bool, bool]) -> State:
    fixed = _put_together(code, arrays)
    averaged, best = extras
    return State(
        params=params,
        optimizer=fixed.transformation.init(params),
        average=params if averaged else None,
        best=params if best else None,
        best_loss=jnp.asarray(jnp.inf),
        # Epochs take the keys (seed, 0), (seed, 1) and so on; the start takes one of its own.
        carry=fixed.objective.start(
            jax.random.fold_in(fixed.key, 2**31), fixed.model(params), fixed.data
        ),
        step=jnp.zeros((), jnp.int32),
    )


# The state is given away: an epoch works in the memory of the last.
@compiled(static_argnums=0, donate_argnums=2)
def _epoch(
    code: Any, arrays: _Fixed, state: State, when: tuple[Array, Array]
) -> tuple[State, dict[str, Array]]:
    """Go once through the data; return the mean of each number over the batches."""
    fixed, (epoch, starts) = _put_together(code, arrays), when
    key = jax.random.fold_in(fixed.key, epoch)
    step = functools.partial(_step, fixed, key)
    state, numbers = jax.lax.scan(step, state, (jnp.arange(starts.size), starts))
    means = {name: jnp.mean(values) for name, values in numbers.items()}
    if fixed.held_out is not None:
        shown = state.params if state.average is None else state.average
        # Batches take the keys 0, 1 and so on.
        judge = jax.random.fold_in(key, starts.size)
        loss = fixed.objective.held_out(judge, fixed.model(shown), fixed.held_out)
        means["held_out"] = loss
        if state.best is not None:
            better = loss < state.best_loss
            best = jax.tree.map(lambda new, old: jnp.where(better, new, old), shown, state.best)
            loss = jnp.where(better, loss, state.best_loss)
            state = dataclasses.replace(state, best=best, best_loss=loss)
    return state, means


def _step(
    fixed: _Fixed, noise: Array, state: State, at: tuple[Array, Array]
) -> tuple[State, dict[str, Array]]:
    """Take one step of the optimizer on one batch."""
    index, start = at
    batch = jax.tree.map(
        lambda array: jax.lax.dynamic_slice_in_dim(array, start, fixed.batch), fixed.data
    )
    if fixed.mesh is not None:  # XLA adds the gradients of the parts up
        batch = jax.lax.with_sharding_constraint(batch, row_sharding(fixed.mesh))
    gradient, carry, numbers = fixed.objective.gradient(
        jax.random.fold_in(noise, index), fixed.model(state.params), state.carry, batch
    )
    # Written down: XLA would else work it out for each moment, the step and the norm.
    gradient = jax.lax.optimization_barrier(_trained_part(fixed, state.params, gradient))
    numbers = numbers | {"gradient_norm": _norm(gradient)}
    # Optax mixes integers and floats; a user who forbids that elsewhere should not hear of it.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        updates, optimizer = fixed.transformation.update(gradient, state.optimizer, state.params)
        shape = fixed.shape(state.step, fixed.steps)
    rate = -fixed.rate * shape.astype(fixed.rate.dtype)
    params = jax.tree.map(lambda p, u: p + rate.astype(p.dtype) * u, state.params, updates)
    average = state.average
    if average is not None:
        # While few steps are taken the average is a short one, not the starting point.
        early = ((1 + state.step) / (10 + state.step)).astype(fixed.decay.dtype)
        decay = jnp.minimum(fixed.decay, early)
        average = jax.tree.map(lambda a, p: p + decay.astype(p.dtype) * (a - p), average, params)
    changed = {"params": params, "optimizer": optimizer, "average": average, "carry": carry}
    return dataclasses.replace(state, **changed, step=state.step + 1), numbers


def _norm(tree: PyTree) -> Array:
    """Return the Euclidean norm, by products: XLA adds a sum up number by number."""
    return jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(tree)))


def _trained_part(fixed: _Fixed, params: PyTree, gradient: PyTree) -> PyTree:
    """Return the gradient of what is trained, in the form of the parameters."""
    # What is not trained is None among the parameters.
    none = {"is_leaf": lambda leaf: leaf is None}
    parts = fixed.parts(params)
    same = jax.tree.map(lambda p, g: None if p is None else g, parts, gradient, **none)
    return same if fixed.packing is None else fixed.packing.pack(same)


def _kept(state: State, rows: list[Row]) -> PyTree:
    """Return the parameters to keep: the best, else the averaged, else the last."""
    found = next(p for p in (state.best, state.average, state.params) if p is not None)
    kept = jax.device_get(found)
    # The last step of all is one whose result no loss has seen.
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(kept)):
        raise _failure(rows, "the parameters are no longer finite. Take a smaller learning_rate.")
    return kept


def _refuse_trouble(objective: Objective, rows: list[Row]) -> None:
    row = rows[-1]
    wrong = [name for name, value in row.items() if not np.isfinite(value)]
    trouble = objective.trouble(rows)
    if wrong:
        norms = ", ".join(f"{r['gradient_norm']:.3g}" for r in rows[-4:])
        trouble = (
            f"{', '.join(wrong)} became {row[wrong[0]]} (norms of the gradient in the last epochs: "
            f"{norms}). A smaller learning_rate or clip=1.0 usually cures it; so does scaling the "
            "data to unit variance."
        )
    if trouble:
        raise _failure(rows, trouble)


def _failure(rows: list[Row], trouble: str) -> TrainingError:
    error = TrainingError(f"Training stopped in epoch {len(rows)}: {trouble}")
    error.history = rows
    return error


def _reason(plan: Plan, rows: list[Row], *, interrupted: bool = False) -> str:
    """Say why training ends now; nothing if it goes on."""
    if plan.patience is not None and "held_out" in rows[-1]:
        losses = [row["held_out"] for row in rows]
        if len(rows) - 1 - int(np.argmin(losses)) >= plan.patience:
            return f"the held-out loss has not fallen for {plan.patience} epochs"
    return "it was interrupted" if interrupted else ""


def _note(row: Row) -> str:
    shown = [name for name in ("held_out", "loss") if name in row]
    return ", ".join(f"{name.replace('_', '-')} {row[name]:.4g}" for name in shown)
