"""The store: what is committed is seen whole, and nothing else is, whatever happens.

Run as a program, this file is the writer that gets killed; it must start fast, so that xarray and
ArviZ are imported where they are used.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from samplekit.core.errors import SamplekitError, StoreError
from samplekit.sampling import store_layout as module
from samplekit.sampling.store import Store, Variable

CHAINS = 4
ROOT = Path(__file__).resolve().parents[2]
VARIABLES = {
    "mu": Variable((), np.dtype("float32"), ()),
    "theta": Variable((3, 2), np.dtype("float64"), ("school", "side")),
    "label": Variable((2,), np.dtype("int64"), ("side",)),
    "key": Variable((2,), np.dtype("uint32"), ("word",)),
    "none": Variable((0,), np.dtype("float32"), ("nothing",)),
}
GROUPS = {"posterior": VARIABLES, "sample_stats": {"diverging": Variable((), np.dtype(bool), ())}}
COORDS = {"school": ["Älta", "B", "ccc"], "side": [-1.5, 2.5]}


def draws(variable: Variable, start: int, stop: int) -> np.ndarray:
    """Return values (chain, draw, *event) that differ everywhere and can be told in advance."""
    count = int(np.prod(variable.shape))
    chain, draw, event = np.ogrid[:CHAINS, start:stop, :count]
    values = draw * 100 + chain * 10 + event
    if variable.dtype == bool:
        values = values % 3 == 0
    return values.astype(variable.dtype).reshape(CHAINS, stop - start, *variable.shape)


def append(store: Store, start: int, stop: int, *, step: int = CHAINS) -> None:
    for group, variables in GROUPS.items():
        for first in range(0, CHAINS, step):
            part = slice(first, min(CHAINS, first + step))
            data = {n: draws(v, start, stop)[part] for n, v in variables.items()}
            store.append(group, start, part, data)


def commit(store: Store, stop: int) -> None:
    state = {"index": np.int64(stop), "x": np.full((CHAINS, 2), stop, np.float32), "empty": []}
    lengths = dict.fromkeys(GROUPS, stop)
    store.commit(lengths, state, sampler_attrs={"at": stop}, attrs={"draws": stop})


def extend(store: Store, stop: int, *, step: int = CHAINS) -> None:
    append(store, store.lengths["posterior"], stop, step=step)
    commit(store, stop)


def new(path: Path, **options) -> Store:
    return Store.create(path, chains=CHAINS, groups=GROUPS, coords=COORDS, **options)


def check(path: Path, length: int | None = None, **how) -> int:
    """Compare all that a reader sees with what must be there; return the number of draws."""
    from xarray import open_datatree

    with open_datatree(path, engine="zarr", **how) as tree:
        seen = tree["posterior"].sizes["draw"]
        assert length is None or seen == length
        for group, variables in GROUPS.items():
            data = tree[group].to_dataset()
            np.testing.assert_array_equal(data["draw"], np.arange(seen))
            assert set(data.data_vars) == set(variables)
            for name, variable in variables.items():
                assert data[name].dims == ("chain", "draw", *variable.dims)
                assert data[name].dtype == variable.dtype
                np.testing.assert_array_equal(data[name], draws(variable, 0, seen))
        assert tree["sampler"].attrs.get("at", 0) == seen == tree.attrs.get("draws", 0)
        return seen


@pytest.mark.parametrize("chain_block", [1, 3, CHAINS])
@pytest.mark.parametrize("step", [1, CHAINS])
def test_round_trip_over_many_commits_and_blocks(tmp_path, monkeypatch, chain_block, step):
    monkeypatch.setattr(module, "BLOCK_DRAWS", 16)
    store = new(tmp_path / "run", chain_block=chain_block)
    check(store.path, 0)
    for stop in (1, 2, 15, 16, 17, 40, 90):
        extend(store, stop, step=step)
        check(store.path, stop)
        assert store.lengths == dict.fromkeys(GROUPS, stop)
    store.close()
    check(store.path, 90)
    check(store.path, 90, consolidated=False)


def test_arviz_opens_values_coordinates_and_attributes(tmp_path):
    import arviz as az

    arrays = {"y": (("school",), np.arange(3.0)), "name": (("obs",), ["a", "bé"]), "total": ((), 7)}
    constants = {"observed_data": arrays}
    attrs = {"text": "ü", "bad": [np.nan, -np.inf], "deep": {"n": np.int32(3)}, "no": None}
    own = {"posterior": {"inference_library": "samplekit"}}
    store = new(tmp_path / "run", constants=constants, attrs=attrs, group_attrs=own)
    strict = json.loads((store.path / "zarr.json").read_text(), parse_constant=pytest.fail)
    wanted = {"text": "ü", "bad": ["NaN", "-Infinity"], "deep": {"n": 3}, "no": None}
    assert strict["attributes"] == store.attrs == wanted == az.from_zarr(store.path).attrs
    extend(store, 20)
    tree = az.from_zarr(store.path)
    assert set(tree.children) == {"posterior", "sample_stats", "observed_data", "sampler"}
    assert tree["posterior"].attrs == own["posterior"]
    data, observed = tree["posterior"].to_dataset(), tree["observed_data"].to_dataset()
    assert data["school"].values.tolist() == observed["school"].values.tolist() == COORDS["school"]
    assert data["side"].values.tolist() == COORDS["side"]
    assert observed["name"].values.tolist() == ["a", "bé"]
    assert observed["total"].item() == 7
    assert data["chain"].values.tolist() == [0, 1, 2, 3]
    assert "school" not in tree["sample_stats"].coords
    assert np.isfinite(az.summary(tree, var_names=["mu"])["mean"].astype(float)).all()


def test_reopened_store_forgets_what_was_not_committed(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_DRAWS", 8)
    store = new(tmp_path / "run", chain_block=2)
    assert store.state() == {}
    extend(store, 10)
    wrong = {n: np.full_like(draws(v, 10, 30), 1) for n, v in VARIABLES.items()}
    store.append("posterior", 10, slice(None), wrong)
    again = Store.open(store.path)
    check(store.path, 10)
    assert (again.lengths, again.attrs) == (store.lengths, {"draws": 10})
    assert again.sampler_attrs == store.sampler_attrs == {"at": 10}
    state = again.state()
    assert state["index"] == 10
    assert state["x"].dtype == np.float32
    assert state["empty"].shape == (0,)
    extend(again, 20)
    extend(again, 33)
    check(store.path, 33)
    np.testing.assert_array_equal(Store.open(store.path).state()["x"], np.full((CHAINS, 2), 33))


@pytest.mark.parametrize(("size", "block", "draws"), [(1, 4, 1000), (2**20, 4, 4), (2**20, 64, 1)])
def test_large_draws_make_small_blocks(tmp_path, size, block, draws):
    groups = {"posterior": {"x": Variable((size,), np.dtype("f4"), ("k",))}}
    Store.create(tmp_path / "run", chains=64, groups=groups, chain_block=block)
    meta = json.loads((tmp_path / "run" / "posterior" / "x" / "zarr.json").read_text())
    assert meta["chunk_grid"]["configuration"]["chunk_shape"] == [block, draws, size]


def test_threads_append_their_own_chains(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_DRAWS", 32)
    store = new(tmp_path / "run", chain_block=CHAINS)

    def one(chain: int, start: int) -> None:
        part = slice(chain, chain + 1)
        for group, variables in GROUPS.items():
            data = {n: draws(v, start, start + 20)[part] for n, v in variables.items()}
            store.append(group, start, part, data)

    with ThreadPoolExecutor(CHAINS) as pool:
        for start in range(0, 100, 20):
            list(pool.map(lambda chain, at=start: one(chain, at), range(CHAINS)))
            commit(store, start + 20)
    check(store.path, 100)


@pytest.mark.parametrize(
    "name", ["x y", " x", "μ", "<script>alert(1)<", "a:b?#*%2F~", "c", "\n", "draw.x", "é"]
)
def test_odd_names_are_kept(tmp_path, name):
    import arviz as az

    groups = {"posterior": {name: Variable((), np.dtype("f8"), ())}}
    store = Store.create(tmp_path / "run", chains=1, groups=groups)
    store.append("posterior", 0, slice(None), {name: np.ones((1, 3))})
    store.commit({"posterior": 3}, {name: np.ones(2)}, sampler_attrs={})
    assert az.from_zarr(store.path)["posterior"].to_dataset()[name].sum() == 3
    assert list(Store.open(store.path).state()) == [name]


@pytest.mark.parametrize("name", ["a/b", "a\\b", "", "..", "__x", "zarr.json", "x" * 300, "\ud800"])
def test_impossible_names_are_refused_by_name(tmp_path, name):
    groups = {"posterior": {name: Variable((), np.dtype("f8"), ())}}
    with pytest.raises(StoreError, match="Rename it") as caught:
        Store.create(tmp_path / "run", chains=1, groups=groups)
    assert repr(f"posterior/{name}") in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"coords": {"school": ["a"], "side": [0, 1]}}, "'school' has size 3, elsewhere 1"),
        ({"coords": {"side": [[0, 1], [2, 3]]}}, "name each axis"),
        ({"constants": {"posterior": {}}}, "another group"),
        ({"constants": {"sampler": {}}}, "another group"),
        ({"constants": {"data": {"n": (("n",), [1, 2])}}}, "a dimension has that name"),
        ({"constants": {"data": {"n": (("i", "i"), np.ones((2, 2)))}}}, "name each axis"),
        ({"constants": {"data": {"n": ((), object())}}}, "Zarr has no type for object"),
        ({"attrs": {"model": object()}}, r"run\.model.*JSON has no type for object"),
    ],
)
def test_wrong_layouts_are_refused(tmp_path, options, match):
    with pytest.raises(StoreError, match=match):
        Store.create(tmp_path / "run", chains=CHAINS, groups=GROUPS, **options)
    assert not (tmp_path / "run").exists()


def test_wrong_appends_and_commits_are_refused(tmp_path):
    store = new(tmp_path / "run")
    extend(store, 10)
    good = {"diverging": draws(GROUPS["sample_stats"]["diverging"], 10, 12)}
    few, real = good["diverging"][:2], good["diverging"].astype(float)
    for data in ({}, {"diverging": few}, {"diverging": real}):
        with pytest.raises(StoreError, match="Give"):
            store.append("sample_stats", 10, slice(None), data)
    for start in (9, 11):
        with pytest.raises(StoreError, match="without a gap"):
            store.append("sample_stats", start, slice(None), good)
    store.append("sample_stats", 10, slice(0, 3), {"diverging": good["diverging"][:3]})
    for stop in (9, 12):
        with pytest.raises(StoreError, match="every chain"):
            store.commit({"sample_stats": stop}, store.state(), sampler_attrs={})
    with pytest.raises(StoreError, match="first commit"):
        store.commit({}, {"index": np.int64(3)}, sampler_attrs={})
    check(store.path, 10)


def test_only_new_or_empty_folders_are_taken(tmp_path):
    (tmp_path / "empty").mkdir()
    store = new(tmp_path / "empty")
    (tmp_path / "file").write_text("x")
    for taken in (store.path, tmp_path / "file", tmp_path):
        with pytest.raises(StoreError, match=r"another path, delete it.*sk\.resume"):
            new(taken)
    new(tmp_path / "deep" / "er")
    check(tmp_path / "empty", 0)
    for path, text in [("nowhere", None), ("other", "{}"), ("broken", "{")]:
        if text:
            (tmp_path / path).mkdir()
            (tmp_path / path / "zarr.json").write_text(text)
        with pytest.raises(StoreError, match=r"no run of samplekit"):
            Store.open(tmp_path / path)


def failing(patch: pytest.MonkeyPatch, call: str, number: int, after: int = 0) -> None:
    """Let a call of the system fail from its ``after``-th use on."""
    real, uses = getattr(os, call), iter(range(10**6))

    def fail(*args, **kwargs):
        if next(uses) >= after:
            raise OSError(number, os.strerror(number))
        return real(*args, **kwargs)

    patch.setattr(os, call, fail)


@pytest.mark.parametrize(
    ("call", "number", "why"),
    [
        ("replace", errno.EIO, "the system refused"),
        ("pwrite", errno.ENOSPC, "disk is full.*free some space"),
        ("ftruncate", errno.ENOSPC, "disk is full"),
        ("open", errno.EACCES, "no right to write.*permissions"),
        ("open", errno.EROFS, "read-only"),
        ("mkdir", errno.ENOSPC, "disk is full"),
    ],
)
def test_failure_of_the_system_leaves_the_last_commit(tmp_path, monkeypatch, call, number, why):
    monkeypatch.setattr(module, "BLOCK_DRAWS", 16)
    with monkeypatch.context() as patch:
        failing(patch, call, number)
        with pytest.raises(StoreError, match=why):
            new(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    store, errors = new(tmp_path / "run"), []
    for after in range(12):  # fail at each of the first uses
        begin = store.lengths["posterior"]
        with monkeypatch.context() as patch:
            failing(patch, call, number, after)
            try:
                extend(store, begin + 20)
            except StoreError as error:
                errors.append(error)
                assert store.lengths["posterior"] == begin
        check(store.path, store.lengths["posterior"])
    assert errors
    assert all(isinstance(e, SamplekitError) and "sk.resume" in str(e) for e in errors)
    extend(store, store.lengths["posterior"] + 20)
    check(store.path, store.lengths["posterior"])


def test_vanished_folder(tmp_path):
    store = new(tmp_path / "run")
    extend(store, 10)
    shutil.rmtree(store.path)
    for action in (lambda: extend(store, 20), lambda: commit(store, 10), store.state, store.close):
        with pytest.raises(StoreError, match="vanished"):
            action()
    assert list(tmp_path.iterdir()) == []


def test_durable_store_syncs_before_it_commits(tmp_path, monkeypatch):
    log = []
    for call in ("fsync", "replace"):
        real = getattr(os, call)
        monkeypatch.setattr(os, call, lambda *a, c=call, f=real: (log.append(c), f(*a))[1])
    store = new(tmp_path / "run", durable=True)
    log.clear()
    extend(store, 10)
    assert log[-3:] == ["fsync", "replace", "fsync"]
    assert log.count("replace") == 1
    check(store.path, 10)


def run_child(path: Path, mode: str) -> subprocess.Popen:
    """Start this file as a writer; it says "ready" before the first write."""
    command = [sys.executable, __file__, str(path), mode]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    return child


def end(child: subprocess.Popen) -> int:
    with child:
        return child.wait(60)


def test_kill_at_any_instant(tmp_path, seed):
    rng = np.random.default_rng(seed)
    path, lengths = tmp_path / "run", [0]
    for number in range(20):
        if number % 5 == 0:  # a new store, killed while it is made or soon after
            path, lengths = tmp_path / f"run{number}", [0]
        child = run_child(path, "forever")
        time.sleep(rng.uniform(0, 0.01 if number % 5 == 0 else 0.15))
        child.kill()
        assert end(child) == -9
        if path.exists():
            lengths.append(check(path))
            assert lengths[-1] >= lengths[-2]
            store = Store.open(path)
            assert store.state().get("index", 0) == store.lengths["posterior"] == lengths[-1]
    assert lengths[-1] > 100


def test_live_reader_sees_whole_commits(tmp_path):
    child = run_child(tmp_path / "run", "600")
    seen, ended = [], threading.Event()
    waiter = threading.Thread(target=lambda: (end(child), ended.set()))
    waiter.start()
    while not ended.is_set():
        if (tmp_path / "run").exists():
            seen.append(check(tmp_path / "run"))
    waiter.join()
    assert child.returncode == 0
    assert seen == sorted(seen)
    assert len(set(seen)) > 2
    check(tmp_path / "run", 600)


def test_file_size_limit_of_the_system(tmp_path):
    child = run_child(tmp_path / "run", "limit")
    assert end(child) == 0
    assert 0 < check(tmp_path / "run") < 600


def main(path: str, mode: str) -> None:
    """Write until killed, to a number of draws, or into a limit of the system."""
    import resource

    module.BLOCK_DRAWS = 64
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    store = Store.open(path) if os.path.exists(path) else new(Path(path), chain_block=3)
    if mode == "limit":
        extend(store, 60)
        resource.setrlimit(resource.RLIMIT_FSIZE, (7000, 7000))  # a block of theta needs 9216
    stop = 10**9 if mode == "forever" else 600
    try:
        while store.lengths["posterior"] < stop:
            extend(store, store.lengths["posterior"] + 6)
    except StoreError as error:
        sys.exit(0 if mode == "limit" and "size limit" in str(error) else 1)
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
