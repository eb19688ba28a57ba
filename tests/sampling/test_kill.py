"""Stored runs survive kill -9 at any instant, and a full disk costs no draw.

Run as a program, this file is the sampler that gets killed.
"""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import samplekit as sk
from samplekit.core.errors import StoreError
from samplekit.sampling import loop, record

ROOT = Path(__file__).resolve().parents[2]
# Warm-up takes about as long as sampling, each about a second under ROUND below.
SETTINGS = {"draws": 300, "warmup": 300, "chains": 2, "seed": 5, "keep_warmup": True}
ROUND = 0.0005  # seconds: hundreds of commits in a run
PAUSE = 0.002  # seconds after each round, so that a kill can hit every part of a run


def make_target():
    return sk.targets.gaussian(2, covariance=np.array([[1.0, 0.8], [0.8, 2.0]], np.float32))


def make_kernel():
    return sk.NUTS(max_treedepth=3)


def child(path):
    """Sample into a store with short rounds; say when it is there."""
    loop.ROUND_SECONDS, loop.QUICK_ROUND = ROUND, 4.0
    wait = loop._wait

    def slowly(jobs):
        time.sleep(PAUSE)
        return wait(jobs)

    loop._wait = slowly
    sk.sample(make_target(), make_kernel(), store=path, progress=False, **SETTINGS)


if __name__ == "__main__":
    child(sys.argv[1])
    sys.exit()


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Return an environment in which the program is compiled already."""
    cache = str(tmp_path_factory.mktemp("cache"))
    return os.environ | {
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": str(ROOT),
    }


def start(path, environment):
    return subprocess.Popen([sys.executable, __file__, str(path)], env=environment)


@pytest.fixture(scope="module")
def straight(environment, tmp_path_factory):
    """Return the uninterrupted run, by a child as well, and how long its parts took."""
    path = tmp_path_factory.mktemp("straight") / "run.zarr"
    process = start(path, environment)
    assert process.wait(300) == 0
    return open_store(path)


def open_store(path):
    import arviz as az

    tree = az.from_zarr(path)
    tree.load()
    tree.close()
    return tree


def state(path):
    """Return the tick of the last commit, or -1."""
    try:
        text = (path / "zarr.json").read_text()
    except FileNotFoundError:
        return -1
    return int(text.split('"tick": ')[1].split(",")[0])


def kill_and_resume(path, at, environment, straight):
    """Kill a child soon after it has committed tick `at`; return the tick that is stored."""
    process = start(path, environment)
    try:
        while state(path) < at:
            assert process.poll() is None, "the child ended before it was killed"
            time.sleep(0.0005)
        time.sleep(at % 16 * 0.001)  # in any part of a round
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    reached = state(path)
    tree = open_store(path)
    warm, drawn = min(reached, 300), max(0, reached - 300)
    lengths = {name: tree[name].sizes.get("draw") for name in tree.children}
    lengths.pop("sampler")
    assert lengths == {
        "posterior": drawn,
        "sample_stats": drawn,
        "warmup_posterior": warm,
        "warmup_sample_stats": warm,
    }
    for group in lengths:
        for name, values in tree[group].data_vars.items():
            whole = straight[group][name].values[:, : values.sizes["draw"]]
            np.testing.assert_array_equal(values, whole, err_msg=f"{group}/{name}")
    sk.resume(path, make_target(), progress=False)
    assert_same(open_store(path), straight)
    return reached


def assert_same(tree, straight):
    for group in ("posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats"):
        assert set(tree[group].data_vars) == set(straight[group].data_vars)
        for name in tree[group].data_vars:
            np.testing.assert_array_equal(tree[group][name], straight[group][name], err_msg=name)
    for name in ("state.position", "kernel.step_size", "kernel.metric.root", "key"):
        slots = [int(t["sampler"].attrs["slot"]) for t in (tree, straight)]
        one, two = (
            t["sampler"][name].values[s] for t, s in zip((tree, straight), slots, strict=True)
        )
        np.testing.assert_array_equal(one, two, err_msg=name)


def instants(seed, count):
    """Return ticks to kill at: in warm-up by turns, and one before the first step."""
    rng = np.random.default_rng(seed)
    warm = rng.integers(1, 280, count)
    late = rng.integers(300, 580, count)
    return [0, *(int(t) for pair in zip(late, warm, strict=True) for t in pair)][:count]


def test_kill(environment, straight, tmp_path, seed):
    reached = [
        kill_and_resume(tmp_path / f"{i}.zarr", at, environment, straight)
        for i, at in enumerate(instants(seed, 3))
    ]
    assert sum(t < 300 for t in reached) >= 1, reached
    assert sum(300 < t < 600 for t in reached) >= 1, reached


@pytest.mark.slow
def test_many_kills(environment, straight, tmp_path, seed):
    reached = [
        kill_and_resume(tmp_path / f"{i}.zarr", at, environment, straight)
        for i, at in enumerate(instants(seed + 1, 22))
    ]
    assert sum(t < 300 for t in reached) >= 5, reached
    assert sum(300 < t < 600 for t in reached) >= 5, reached


# Disks that refuse --------------------------------------------------------------------------


def sample_small(**options):
    settings = {"draws": 60, "warmup": 30, "chains": 2, "seed": 5} | options
    return sk.sample(make_target(), make_kernel(), progress=False, **settings)


def assert_prefix(run, whole):
    """Assert that a run holds the first draws of another; return how many."""
    count = run["posterior"].sizes["draw"]
    for group in ("posterior", "sample_stats"):
        assert run[group].sizes["draw"] == count
        for name, values in run[group].data_vars.items():
            np.testing.assert_array_equal(values, whole[group][name][:, :count], err_msg=name)
    return count


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_costs_no_draw(number, tmp_path, monkeypatch):
    whole = sample_small()
    path, write = tmp_path / "run.zarr", os.pwrite
    for name in ("ROUND_SECONDS", "FIRST_ROUND", "QUICK_ROUND"):
        monkeypatch.setattr(loop, name, 0)  # rounds of one tick, each with its commit
    full = []

    def pwrite(handle, data, offset):
        if full or state(path) >= 30 + 25:
            full.append(True)
            raise OSError(number, os.strerror(number))
        return write(handle, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    words = "the disk is full.*free some space" if number == errno.ENOSPC else "system refused"
    with pytest.raises(StoreError, match=f"run.zarr.*{words}") as caught:
        sample_small(store=path)
    monkeypatch.undo()
    assert len(full) == 1  # it does not try again and again
    assert assert_prefix(caught.value.run, whole) == 26
    assert assert_prefix(open_store(path), whole) == 25
    # Both go on: what is in memory, and, once there is space, what is stored.
    for source in (caught.value.run, path):
        assert assert_prefix(sk.resume(source, make_target(), progress=False), whole) == 60
    assert assert_prefix(open_store(path), whole) == 60


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"cannot write or read the run at .*file/run.zarr"):
        sample_small(store=tmp_path / "file" / "run.zarr")
    with pytest.raises(StoreError, match=r"something is there already.*sk.resume"):
        sample_small(store=tmp_path / "file")
    with pytest.raises(StoreError, match=r"cannot write or read the run at '/proc/run.zarr'"):
        sample_small(store="/proc/run.zarr")


def test_a_folder_that_vanishes(tmp_path, monkeypatch):
    path = tmp_path / "run.zarr"
    for name in ("ROUND_SECONDS", "FIRST_ROUND", "QUICK_ROUND"):
        monkeypatch.setattr(loop, name, 0)
    monkeypatch.setattr(loop, "_wait", lambda jobs: path.exists() and move_away(path))
    with pytest.raises(StoreError, match=r"vanished.*put it back") as caught:
        sample_small(store=path, warmup=0)
    assert caught.value.run["posterior"].sizes["draw"] >= 1


def move_away(path):
    if state(path) >= 5:
        path.rename(path.with_name("elsewhere"))
    return False


def test_a_stored_run_equals_one_in_memory(tmp_path):
    whole, path = sample_small(), tmp_path / "run.zarr"
    assert assert_prefix(sample_small(store=path), whole) == 60
    assert assert_prefix(open_store(path), whole) == 60
    longer = sk.resume(path, make_target(), draws=5, progress=False)
    assert assert_prefix(whole, longer) == 60
    assert longer["posterior"].sizes["draw"] == open_store(path)["posterior"].sizes["draw"] == 65


def test_a_large_run_comes_back_from_its_store(tmp_path, monkeypatch):
    """As anybody would open it, but that the labels of its draws take no memory."""
    monkeypatch.setattr(record, "MEMORY_BYTES", 0)
    path = tmp_path / "run.zarr"
    with sample_small(store=path) as run, open_store(path) as wanted:
        assert run.identical(wanted)
        labels = run["posterior"].indexes["draw"]
        assert isinstance(labels, pd.RangeIndex)
        assert assert_prefix(run, sample_small()) == 60
        assert run["posterior"]["x"].sel(draw=slice(3, 5)).sizes["draw"] == 3
        wanted.to_netcdf(tmp_path / "run.nc")  # which takes neither booleans nor tables
        assert labels.memory_usage() < 1000
