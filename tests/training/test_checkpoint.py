"""Checkpoints: a training that was killed or interrupted goes on bit for bit; refusals name why.

Run as a program, this file is the training that gets killed.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import optax
import pytest

from samplekit.core.errors import ResumeError, StoreError, TrainingError
from samplekit.training import checkpoint
from samplekit.training.plan import Plan
from samplekit.training.trainer import train
from tests.training.objectives import Quadratic, quadratic, rows

ROOT = Path(__file__).resolve().parents[2]
PLAN = Plan(epochs=300, batch_size=8, learning_rate=0.01, average=0.99, patience=300)


def run(path=None, plan=PLAN, seed=4, noise=0.3, data=None, held=None, objective=None):
    """Train with noise, an average, the best parameters and a carry: all that a file must hold."""
    return train(
        objective or quadratic(noise=noise),
        np.zeros(3, np.float32),
        rows() if data is None else data,
        plan,
        held_out=rows(seed=1) if held is None else held,
        seed=seed,
        progress=False,
        checkpoint=path,
    )


if __name__ == "__main__":
    checkpoint._EVERY = 0.0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background of a shell
    # A pause after each epoch, so that a signal can hit the training half-way.
    Quadratic.trouble = lambda self, rows: time.sleep(0.01)
    print(run(sys.argv[1]).stopped)
    sys.exit()


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(checkpoint, "_EVERY", 0.0)


@pytest.fixture(scope="module")
def straight():
    return run()


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Return the bytes of a file after two epochs."""
    path = tmp_path_factory.mktemp("begun") / "state.npz"
    run(path, dataclasses.replace(PLAN, epochs=2))
    return path.read_bytes()


def assert_same(found, expected):
    np.testing.assert_array_equal(found.model, expected.model)
    assert int(found.carry) == int(expected.carry)
    strip = [[{**row, "seconds": 0} for row in f.history] for f in (found, expected)]
    assert strip[0] == strip[1]


def start(path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, str(path)]
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.3)
    return child


def test_killed_and_continued_is_straight(tmp_path, straight):
    path = tmp_path / "state.npz"
    child = start(path)
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=30)
    assert child.returncode == -signal.SIGKILL
    done = len(checkpoint_rows(path))
    assert 0 < done < PLAN.epochs
    assert_same(run(path), straight)


def test_interrupted_and_continued_is_straight(tmp_path, straight):
    path = tmp_path / "state.npz"
    child = start(path)
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate(timeout=30)
    assert child.returncode == 0
    assert said.strip() == "it was interrupted"
    assert 0 < len(checkpoint_rows(path)) < PLAN.epochs
    assert_same(run(path), straight)


def checkpoint_rows(path):
    with np.load(path, allow_pickle=False) as archive:
        return json.loads(str(archive["about"]))["rows"]


def test_more_epochs_go_on_where_the_last_ended(tmp_path, straight):
    path = tmp_path / "deep" / "state.npz"
    run(path, dataclasses.replace(PLAN, epochs=100))
    assert_same(run(path), straight)
    assert [p.name for p in path.parent.iterdir()] == ["state.npz"]


def test_a_finished_training_is_read_back(tmp_path, straight):
    path = tmp_path / "state.npz"
    run(path)
    before = path.stat().st_mtime_ns
    assert_same(run(path), straight)
    assert path.stat().st_mtime_ns == before


def test_a_training_that_stopped_early_stays_stopped(tmp_path):
    path, plan = tmp_path / "state.npz", dataclasses.replace(PLAN, patience=3, average=0.0)
    first = run(path, plan)
    assert "3 epochs" in first.stopped
    again = run(path, plan)
    assert again.stopped == first.stopped
    assert_same(again, first)


def test_a_failed_training_leaves_its_last_good_state(tmp_path):
    path = tmp_path / "state.npz"
    plan = Plan(epochs=500, batch_size=64, learning_rate=1.0, optimizer="sgd")
    with pytest.raises(TrainingError) as e:
        run(path, plan)
    assert len(checkpoint_rows(path)) == len(e.value.history) - 1


def test_files_are_written_now_and_then_and_at_the_end(tmp_path, monkeypatch):
    writes = []
    monkeypatch.setattr(checkpoint, "_EVERY", 3600.0)
    monkeypatch.setattr(np, "savez", lambda file, **arrays: writes.append(len(arrays)))
    run(tmp_path / "state.npz", dataclasses.replace(PLAN, epochs=20))
    assert len(writes) == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 5}, "seed"),
        ({"plan": dataclasses.replace(PLAN, learning_rate=0.02)}, "learning_rate"),
        ({"plan": dataclasses.replace(PLAN, batch_size=16)}, "batch_size"),
        ({"plan": dataclasses.replace(PLAN, average=0.5)}, "average"),
        ({"plan": dataclasses.replace(PLAN, average=0.0)}, "average"),
        ({"plan": dataclasses.replace(PLAN, clip=1.0)}, "clip"),
        ({"plan": dataclasses.replace(PLAN, schedule="cosine")}, "schedule"),
        ({"plan": dataclasses.replace(PLAN, optimizer="sgd")}, "optimizer"),
        ({"plan": dataclasses.replace(PLAN, optimizer=optax.sgd(0.1))}, "optimizer"),
        ({"plan": dataclasses.replace(PLAN, patience=None)}, "patience"),
        ({"data": rows(48)}, "data"),
        ({"data": rows(seed=9)}, "data"),
        ({"held": rows(seed=9)}, "data"),
        ({"objective": quadratic(noise=0.3, name="other")}, "objective"),
        ({"plan": dataclasses.replace(PLAN, epochs=1)}, "epochs"),
    ],
)
def test_another_training_is_refused_and_named(tmp_path, change, named, begun):
    path, before = tmp_path / "state.npz", begun
    path.write_bytes(before)
    with pytest.raises(ResumeError, match=rf"(?s){named}.*(another path|remove it)"):
        run(path, **change)
    assert path.read_bytes() == before


def test_another_model_is_refused(tmp_path, begun):
    path, plan = tmp_path / "state.npz", dataclasses.replace(PLAN, epochs=2)
    path.write_bytes(begun)
    settings = {"held_out": rows(seed=1), "seed": 4, "progress": False, "checkpoint": path}
    wide = quadratic(noise=0.3)
    with pytest.raises(ResumeError, match="a model of shapes"):
        train(wide, {"a": np.zeros(3, np.float32), "b": np.zeros(2, np.float32)}, rows(), plan,
              **settings)  # fmt: skip


@pytest.mark.parametrize("harm", ["empty", "half", "words", "folder"])
def test_a_file_that_is_none_of_ours_is_refused(tmp_path, harm, begun):
    path, plan, whole = tmp_path / "state.npz", dataclasses.replace(PLAN, epochs=2), begun
    if harm == "folder":
        path.mkdir()
    else:
        path.write_bytes({"empty": b"", "half": whole[: len(whole) // 2], "words": b"abc"}[harm])
    with pytest.raises(StoreError, match=r"cannot be read.*Remove it"):
        run(path, plan)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be written"):
        run(tmp_path / "file" / "state.npz", dataclasses.replace(PLAN, epochs=2))
