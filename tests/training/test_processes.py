"""Training over several processes: each takes a part of every batch, and all end with one model.

Run as a program, this file is one of the processes.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


def child(address: str, index: int, count: int, folder: str) -> None:
    import jax

    if count > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(address, count, index)
    import samplekit as sk

    assert jax.process_count() == count
    rows = np.random.default_rng(0).normal(size=(400, 2)).astype(np.float32)
    devices = jax.devices() if count > 1 else None
    common = {"epochs": 3, "batch_size": 100, "random_state": 0, "progress": False}
    score = sk.ScoreNetwork(validation_fraction=0.25, **common).fit(rows, devices=devices)
    machine = sk.GaussBernoulliRBM(3, **common).fit(rows, devices=devices)
    family = sk.families.gaussian_graphical_model().fit(rows, devices=devices)
    np.savez(
        f"{folder}/{count}-{index}.npz",
        score=score.stein_score(rows[:20]),
        history=score.history_[["loss", "held_out"]].to_numpy(),
        weights=machine.components_,
        precision=family.precision_,
    )


if __name__ == "__main__":
    child(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    sys.exit()


def together(count: int, folder: Path) -> list[dict[str, np.ndarray]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, __file__, address]
    words = [[*command, str(i), str(count), str(folder)] for i in range(count)]
    # One device a process: the tests themselves pretend to have several.
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment["PYTHONPATH"] = str(ROOT)
    processes = [subprocess.Popen(w, cwd=ROOT, env=environment) for w in words]
    assert [p.wait(240) for p in processes] == [0] * count
    return [dict(np.load(folder / f"{count}-{i}.npz")) for i in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_processes_train_the_model_of_one(tmp_path, count):
    (alone,) = together(1, tmp_path)
    for found in together(count, tmp_path):
        for name, value in alone.items():
            np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-5)
