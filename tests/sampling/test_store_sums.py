"""Checksums: a stored run of which a byte has changed is not believed, wherever the byte is."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import samplekit as sk
from samplekit.core.errors import StoreError
from samplekit.sampling.store import Store, check_path
from tests.sampling.test_store import append, commit, new

TARGET = sk.targets.banana()
QUICK = {"warmup": 20, "chains": 3, "progress": False}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("sums") / "run.zarr"
    sk.sample(TARGET, sk.MALA(), draws=1500, store=path, **QUICK)
    return path


def _data_files(path: Path) -> list[Path]:
    return sorted(f for f in path.rglob("c.*") if f.stat().st_size and f.parent.name != "draw")


def _flip(file: Path, at: int) -> None:
    with file.open("r+b") as handle:
        handle.seek(at)
        byte = handle.read(1)
        handle.seek(at)
        handle.write(bytes([byte[0] ^ 1]))


def test_a_whole_run_passes(run):
    check_path(run)
    Store.open(run).check()
    assert sk.resume(run, TARGET, progress=False)["posterior"].sizes["draw"] == 1500


def test_a_flipped_bit_is_seen_in_every_file(run, tmp_path):
    """The committed part of every file: draws, statistics, the sampler's state, coordinates."""
    copy = tmp_path / "run.zarr"
    shutil.copytree(run, copy)
    store, random, seen = Store.open(copy), np.random.default_rng(0), 0
    slot = f"c.{store._slot}"
    for file in _data_files(copy):
        state = file.parent.parent.name == "sampler"
        if state and not file.name.startswith(slot):
            continue  # the state before the last, which nobody reads
        size = file.stat().st_size
        # The second thousand of draws is half full.
        used = size // 2 if file.name.split(".")[2:3] == ["1"] and not state else size
        at = int(random.integers(used))
        _flip(file, at)
        with pytest.raises(StoreError, match=r"damaged: .*does not hold the bytes"):
            Store.open(copy).check()
        _flip(file, at)
        seen += 1
    assert seen > 30
    Store.open(copy).check()


def test_nobody_goes_on_with_a_damaged_run(run, tmp_path):
    copy = tmp_path / "run.zarr"
    shutil.copytree(run, copy)
    _flip(copy / "posterior/x/c.0.0.0", 16)
    with pytest.raises(StoreError, match="posterior/x"):
        sk.resume(copy, TARGET, draws=10, progress=False)
    with pytest.raises(StoreError, match="posterior/x"):
        sk.diagnose(copy)
    for harm in (lambda f: f.unlink(), lambda f: f.write_bytes(f.read_bytes()[:-100])):
        shutil.rmtree(copy)
        shutil.copytree(run, copy)
        harm(copy / "sample_stats/lp/c.0.1")
        with pytest.raises(StoreError):
            sk.diagnose(copy)


def test_what_was_never_committed_does_not_matter(run, tmp_path):
    copy = tmp_path / "run.zarr"
    shutil.copytree(run, copy)
    file = copy / "posterior/x/c.0.1.0"
    _flip(file, file.stat().st_size - 1)  # beyond draw 1500
    check_path(copy)


@pytest.mark.filterwarnings("ignore:Consolidated metadata")  # of Zarr 3, which we rely on
def test_other_folders_pass(run, tmp_path):
    import xarray as xr

    xr.open_datatree(run, engine="zarr").load().to_zarr(tmp_path / "copy.zarr")
    check_path(tmp_path / "copy.zarr")  # not our files: nothing to compare with
    check_path(tmp_path / "nothing.zarr")
    sk.diagnose(tmp_path / "copy.zarr")


def test_a_run_that_is_being_written_is_not_called_damaged(run, tmp_path, monkeypatch):
    """Two commits while we read replace the state that the first look at the run has named."""
    copy = tmp_path / "run.zarr"
    shutil.copytree(run, copy)
    writer, check, looks = Store.open(copy), Store.check, []

    def slowly(store):
        looks.append(store)
        for _ in range(2 if len(looks) == 1 else 0):
            state = writer.state()
            state["key"] = state["key"] + 1
            writer.commit({}, state, sampler_attrs=writer.sampler_attrs)
        check(store)

    monkeypatch.setattr(Store, "check", slowly)
    check_path(copy)
    assert len(looks) == 2


@pytest.mark.parametrize(("block", "step"), [(1, 4), (1, 1), (4, 4), (3, 4)])
def test_sums_cover_all_draws(tmp_path, block, step):
    """Also over commits, stores that are opened again, and draws that are written again."""
    store = new(tmp_path / "run.zarr", chain_block=block)
    for stop in (7, 1300, 1310, 3000):
        append(store, store.lengths["posterior"], stop + 100, step=step)  # and not committed
        if stop == 1310:
            store = Store.open(tmp_path / "run.zarr")
        append(store, store.lengths["posterior"], stop, step=step)
        commit(store, stop)
        store.check()
    assert (store.sums.committed["posterior/theta"][:, 1] == 3000).all()


def test_single_chains_of_a_block_are_left_unsummed(tmp_path):
    store = new(tmp_path / "run.zarr", chain_block=4)
    append(store, 0, 10)
    commit(store, 10)
    append(store, 10, 20, step=1)
    commit(store, 20)
    store.check()
    assert store.sums.committed["posterior/mu"].tolist()[0][1] == 10  # and not more
    _flip(tmp_path / "run.zarr/posterior/mu/c.0.0", 4)
    with pytest.raises(StoreError, match="posterior/mu"):
        Store.open(tmp_path / "run.zarr").check()
