"""The trainer: known optima, schedules, averages, stopping, one program, no growth."""

import dataclasses
import gc
import math
import os
import signal
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from samplekit.core.errors import SettingsError, TrainingError
from samplekit.core.pytree import pytree
from samplekit.training import epochs, trainer
from samplekit.training.plan import Plan, adam
from samplekit.training.trainer import train
from tests.training.objectives import TRACES, Quadratic, quadratic, rows

START = jnp.zeros(3)


def trained(plan, objective=None, data=None, **settings):
    objective = quadratic() if objective is None else objective
    data = rows() if data is None else data
    return train(objective, START, data, plan, **{"progress": False, **settings})


def numbers(found, name):
    return np.asarray([row[name] for row in found.history])


def same_history(a, b):
    """Compare all but the time."""
    strip = [[{**row, "seconds": 0} for row in found.history] for found in (a, b)]
    return strip[0] == strip[1]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_finds_the_mean_of_the_rows(optimizer):
    plan = Plan(epochs=600, batch_size=64, learning_rate=0.05, optimizer=optimizer)
    found = trained(plan)
    # The slowest direction shrinks by 0.95 a step: 2·0.95^600 is far below float32's precision.
    np.testing.assert_allclose(found.model, rows().mean(axis=0), rtol=1e-4)
    assert found.stopped == ""
    assert [row["epoch"] for row in found.history] == list(range(1, 601))


def test_one_step_of_gradient_descent_is_the_formula():
    plan = Plan(epochs=1, batch_size=64, learning_rate=0.1, optimizer="sgd")
    expected = 0.1 * np.arange(1, 4) * rows().mean(axis=0)
    np.testing.assert_allclose(trained(plan).model, expected, rtol=1e-6)


@pytree
class Seen:
    """Keeps the rows of every batch in its carry; the rows are their own numbers."""

    def start(self, key, model, data):
        del key, model, data
        return jnp.zeros((0,)), jnp.zeros(10, jnp.int32)

    def gradient(self, key, model, carry, batch):
        del key
        count = carry[1].at[batch[:, 0].astype(jnp.int32)].add(1)
        return jnp.zeros_like(model), (carry[0], count), {"loss": jnp.zeros(())}

    def held_out(self, key, model, data):
        raise NotImplementedError

    def trouble(self, rows):
        del rows


def test_an_epoch_sees_every_row_once_and_the_rest_waits_its_turn():
    data = np.arange(10, dtype=np.float32)[:, None]
    once = train(Seen(), START, data, Plan(epochs=1, batch_size=5), progress=False)
    np.testing.assert_array_equal(once.carry[1], 1)
    # 3 batches of 3 rows: one of ten waits, another one each epoch.
    one = train(Seen(), START, data, Plan(epochs=1, batch_size=3), progress=False)
    assert sorted(np.asarray(one.carry[1])) == [0] + [1] * 9
    many = train(Seen(), START, data, Plan(epochs=200, batch_size=3), progress=False)
    counts = np.asarray(many.carry[1])
    assert counts.sum() == 1800
    # A row waits with chance 0.1: binomial, standard deviation √(200·0.1·0.9) = 4.2.
    assert np.abs(counts - 180).max() < 5 * 4.3


def test_batches_larger_than_the_data_are_the_data():
    found = trained(Plan(epochs=3, batch_size=1000, optimizer="sgd"), data=rows(8))
    assert int(found.carry) == 3


def test_pytrees_of_data_are_cut_together():
    @pytree
    class Line(Quadratic):
        def gradient(self, key, model, carry, batch):
            gap = batch["y"] - batch["x"] @ model
            return -batch["x"].T @ gap / len(gap), carry, {"loss": jnp.mean(gap**2)}

    x = rows()
    data = {"x": x, "y": x @ np.asarray([1.0, -2.0, 0.5], np.float32)}
    plan = Plan(epochs=2000, batch_size=16, learning_rate=0.05, optimizer="sgd")
    found = train(Line(jnp.ones(3)), START, data, plan, progress=False)
    np.testing.assert_allclose(found.model, [1.0, -2.0, 0.5], atol=1e-3)


# Rates --------------------------------------------------------------------------------------------


def steps_of(plan):
    """Return what each step adds where the gradient is always one."""

    @pytree
    class One(Quadratic):
        def gradient(self, key, model, carry, batch):
            del key, batch
            return jnp.ones_like(model), carry, {"loss": jnp.sum(model)}

    found = train(One(jnp.ones(3)), START, rows(8), plan, progress=False)
    places = np.append(numbers(found, "loss"), np.sum(np.asarray(found.model))) / 3
    return -np.diff(places)


SCHEDULES = {
    "constant": lambda t: np.ones_like(t),
    "cosine": lambda t: (1 + np.cos(np.pi * t)) / 2,
    "linear": lambda t: 1 - t,
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(schedule):
    plan = Plan(epochs=8, batch_size=8, learning_rate=0.5, optimizer="sgd", schedule=schedule)
    # Differences of numbers up to 4 in float32.
    np.testing.assert_allclose(
        steps_of(plan), 0.5 * SCHEDULES[schedule](np.arange(8) / 8), atol=1e-5
    )


def test_an_optax_schedule_is_the_rate():
    halving = optax.exponential_decay(0.4, 1, 0.5)
    plan = Plan(epochs=6, batch_size=8, learning_rate=halving, optimizer="sgd")
    np.testing.assert_allclose(steps_of(plan), 0.4 * 0.5 ** np.arange(6), atol=1e-5)


def test_an_optimizer_of_ones_own_sets_its_own_rate():
    plan = Plan(epochs=5, batch_size=8, optimizer=optax.sgd(0.3), learning_rate=77.0)
    np.testing.assert_allclose(steps_of(plan), 0.3, atol=1e-5)
    named = trained(Plan(epochs=5, optimizer="adam", learning_rate=0.01))
    own = trained(Plan(epochs=5, optimizer=optax.adam(0.01)))
    # Optax's 1 − 0.999ᵗ is rounded to 6e-8 of 1, at t = 1 that is 6e-5 of itself, half in the root.
    np.testing.assert_allclose(named.model, own.model, rtol=3e-5)


def test_adam_is_optax_s():
    with jax.enable_x64():
        ours, theirs = adam(), optax.scale_by_adam()
        gradients = np.random.default_rng(0).normal(size=(50, 4)) * [1e-9, 1e-3, 1.0, 1e3]
        state, other = ours.init(jnp.zeros(4)), theirs.init(jnp.zeros(4))
        with jax.numpy_dtype_promotion("standard"):
            for gradient in jnp.asarray(gradients):
                step, state = ours.update(gradient, state)
                expected, other = theirs.update(gradient, other)
                # The same cancellation in double precision: 1e-16 of 1 is 1e-13 of 0.001.
                np.testing.assert_allclose(step, expected, rtol=1e-12)


def test_clip_bounds_the_gradient():
    plan = Plan(epochs=3, batch_size=8, learning_rate=1.0, optimizer="sgd", clip=0.3)
    np.testing.assert_allclose(steps_of(plan), 0.3 / np.sqrt(3), atol=1e-5)


def test_the_average_is_its_recursion():
    settings = {"batch_size": 64, "learning_rate": 0.05, "optimizer": "sgd"}
    kept = trained(Plan(epochs=40, average=0.9, **settings)).model
    x, average = np.zeros(3), np.zeros(3)
    for step in range(40):
        x = x - 0.05 * np.arange(1, 4) * (x - rows().mean(axis=0, dtype=np.float64))
        decay = min(0.9, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * x
    np.testing.assert_allclose(kept, average, rtol=1e-5)
    assert np.abs(average - x).max() > 0.01  # another answer than the last parameters


# Ends ---------------------------------------------------------------------------------------------


def test_patience_keeps_the_best():
    """The held-out rows have another mean: training passes it on its way and goes too far."""
    held = rows() - 1.0
    plan = Plan(epochs=200, batch_size=64, learning_rate=0.02, optimizer="sgd", patience=5)
    objective = Quadratic(jnp.ones(3), jnp.zeros(()))
    found = trained(plan, objective, held_out=held)
    losses = numbers(found, "held_out")
    best = int(np.argmin(losses))
    assert len(losses) == best + 1 + 5
    assert "5 epochs" in found.stopped
    kept = np.mean((np.asarray(found.model) - held) ** 2, axis=0).sum() / 2
    np.testing.assert_allclose(kept, losses[best], rtol=1e-6)
    assert losses[-1] > losses[best] * (1 + 1e-4)
    # Without patience the last parameters are kept, and all epochs are run.
    on = trained(dataclasses.replace(plan, patience=None, epochs=60), objective, held_out=held)
    assert len(on.history) == 60
    last = np.mean((np.asarray(on.model) - held) ** 2, axis=0).sum() / 2
    np.testing.assert_allclose(last, numbers(on, "held_out")[-1], rtol=1e-6)


def test_a_loss_that_is_not_finite_stops_with_the_history():
    plan = Plan(epochs=2000, batch_size=64, learning_rate=1.0, optimizer="sgd")  # 3·η > 2
    with pytest.raises(TrainingError, match=r"(?s)became (inf|nan).*smaller learning_rate") as e:
        trained(plan)
    history = e.value.history
    assert 10 < len(history) < 2000
    assert np.isfinite([row["loss"] for row in history[:-1]]).all()


def test_parameters_that_are_not_finite_are_not_returned():
    plan = Plan(epochs=1, batch_size=64, learning_rate=3e38, optimizer="sgd")
    with pytest.raises(TrainingError, match="parameters"):
        trained(plan)


def test_trouble_that_the_objective_sees_stops():
    @pytree
    class Wary(Quadratic):
        def trouble(self, rows):
            return "enough is enough. Take fewer epochs." if len(rows) == 3 else None

    with pytest.raises(TrainingError, match=r"epoch 3: enough is enough") as e:
        trained(Plan(epochs=9), Wary(jnp.ones(3)))
    assert len(e.value.history) == 3


@pytest.fixture
def heeds_ctrl_c():
    """Python's own handler; a test that runs in the background of a shell has none."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytree
class PressesCtrlC(Quadratic):
    """Sends the signal of Ctrl-C to its own process after the second epoch."""

    def trouble(self, rows):
        if len(rows) == 2:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("short", "ends"), [(0.0, 2), (math.inf, 3)])
def test_ctrl_c_ends_after_the_epochs_that_have_begun(heeds_ctrl_c, monkeypatch, short, ends):
    monkeypatch.setattr(epochs, "SHORT", short)
    found = trained(Plan(epochs=9), PressesCtrlC(jnp.arange(1.0, 4.0)))
    assert found.stopped == "it was interrupted"
    assert [row["epoch"] for row in found.history] == list(range(1, ends + 1))
    straight = trained(Plan(epochs=ends))
    np.testing.assert_array_equal(found.model, straight.model)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(("short", "last"), [(0.0, 2), (math.inf, 3)])
def test_ctrl_c_in_the_last_epoch_is_no_interruption(heeds_ctrl_c, monkeypatch, short, last):
    monkeypatch.setattr(epochs, "SHORT", short)
    found = trained(Plan(epochs=last), PressesCtrlC(jnp.ones(3)))
    assert (found.stopped, len(found.history)) == ("", last)


# Short epochs -------------------------------------------------------------------------------------


def test_short_epochs_and_long_ones_give_the_same_bits(monkeypatch):
    found = []
    for short in (0.0, math.inf):
        monkeypatch.setattr(epochs, "SHORT", short)
        found.append(trained(Plan(epochs=6, batch_size=16), quadratic(noise=0.1)))
    np.testing.assert_array_equal(found[0].model, found[1].model)
    assert same_history(*found)


class Begins(epochs.Epochs):
    """Write down how many epochs had begun whenever one was read."""

    seen: ClassVar[list[int]] = []

    def finish(self):
        self.seen.append(self.begun - len(self.rows))
        return super().finish()


@pytest.mark.parametrize(
    ("plan", "options", "under_way"),
    [
        (Plan(epochs=4), {}, [1, 2, 2, 1]),
        (Plan(epochs=4, patience=3), {"held_out": rows(seed=1)}, [1, 1, 1, 1]),
        (Plan(epochs=4), {"checkpoint": "here"}, [1, 1, 1, 1]),
    ],
)
def test_no_epoch_begins_that_may_have_to_be_taken_back(
    monkeypatch, tmp_path, plan, options, under_way
):
    monkeypatch.setattr(epochs, "SHORT", math.inf)
    monkeypatch.setattr(trainer, "Epochs", Begins)
    monkeypatch.setattr(Begins, "seen", [])
    options = {k: tmp_path / v if k == "checkpoint" else v for k, v in options.items()}
    trained(plan, **options)
    assert Begins.seen == under_way


# One program --------------------------------------------------------------------------------------


def test_other_numbers_run_in_the_same_program():
    plan = Plan(epochs=3, batch_size=16, average=0.5)
    trained(plan, quadratic(name="count"))
    before = len(TRACES)
    trained(dataclasses.replace(plan, learning_rate=0.3), quadratic(name="count"))
    trained(dataclasses.replace(plan, epochs=5), quadratic(name="count"))
    trained(dataclasses.replace(plan, average=0.9), quadratic(name="count"))
    trained(plan, quadratic(name="count"), seed=7)
    trained(plan, Quadratic(jnp.asarray([5.0, 4.0, 9.0]), np.float32(2.0), "count"))
    trained(plan, quadratic(name="count"), data=rows(seed=3))
    assert len(TRACES) == before
    trained(plan, quadratic(name="another"))
    assert len(TRACES) > before  # the count would tell


def test_the_same_seed_gives_the_same_bits_and_another_does_not():
    plan, objective = Plan(epochs=3, batch_size=16), quadratic(noise=0.1)
    first, again, other = (trained(plan, objective, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.model, again.model)
    assert same_history(first, again)
    assert not np.array_equal(first.model, other.model)


def test_epochs_leave_nothing_behind():
    counts = []

    @pytree
    class Counts(Quadratic):
        def trouble(self, rows):
            if len(rows) in (5, 60):
                gc.collect()
                counts.append((len(jax.live_arrays()), sum(a.nbytes for a in jax.live_arrays())))

    trained(Plan(epochs=60, average=0.9, patience=60), Counts(jnp.ones(3)), held_out=rows())
    assert counts[0] == counts[1]


def test_the_model_given_is_left_alone():
    model = jnp.asarray([1.0, 2.0, 3.0])
    train(quadratic(), model, rows(), Plan(epochs=3), progress=False)
    np.testing.assert_array_equal(model, [1.0, 2.0, 3.0])  # not given away


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_double_precision_stays_double(schedule):
    with jax.enable_x64():
        data = rows().astype(np.float64)
        objective = Quadratic(np.ones(3), np.zeros(()))
        plan = Plan(epochs=400, schedule=schedule, learning_rate=0.3, optimizer="sgd", average=0.1)
        found = train(objective, np.zeros(3), data, plan, progress=False, held_out=data)
        assert found.model.dtype == np.float64
        np.testing.assert_allclose(found.model, data.mean(axis=0), rtol=1e-9)


# Settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "match"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"schedule": "steep"}, "constant, cosine, linear"),
        ({"optimizer": "newton"}, "adam, momentum, sgd"),
        ({"learning_rate": 0.0}, "positive"),
        ({"learning_rate": float("nan")}, "positive"),
        ({"average": 1.0}, r"\[0, 1\)"),
        ({"clip": 0.0}, "clip"),
        ({"patience": 0}, "patience"),
    ],
)
def test_settings_that_cannot_be(setting, match):
    with pytest.raises(SettingsError, match=match):
        Plan(**setting)


def test_patience_without_held_out_rows_is_refused():
    with pytest.raises(SettingsError, match="held_out"):
        trained(Plan(patience=3))
