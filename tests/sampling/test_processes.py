"""Several processes share a run: the draws of one, whoever dies when, with any number of them.

Most tests let threads play the processes, each with a crew of its own; the rest starts real ones.
"""

import concurrent.futures as futures
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import samplekit as sk
from samplekit.cli.app import app
from samplekit.cli.load import load_target
from samplekit.core.errors import ProcessError, SettingsError, StoreError
from samplekit.sampling import api, loop, processes
from samplekit.sampling.processes import Alone, Crew, meeting_place
from samplekit.sampling.store import Store

ROOT = Path(__file__).resolve().parents[2]
TARGET = sk.targets.gaussian(2, covariance=np.array([[1.0, 0.6], [0.6, 1.0]], np.float32))
SETTINGS = {"draws": 40, "warmup": 120, "chains": 4, "seed": 5, "keep_warmup": True}
GROUPS = ("posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats")


def assert_same(run, straight):
    """Assert that two runs hold the same draws, statistics and states, to the bit."""
    for group in set(GROUPS) & set(straight.children):
        assert set(run[group].data_vars) == set(straight[group].data_vars)
        for name, values in straight[group].data_vars.items():
            np.testing.assert_array_equal(run[group][name], values, err_msg=name)
    states = [t["sampler"].to_dataset() for t in (run, straight)]
    states = [s.isel(slot=int(s.attrs["slot"])) if "slot" in s.dims else s for s in states]
    for name in ("state.position", "kernel.step_size", "starts"):
        if name in states[0]:
            np.testing.assert_array_equal(*(s[name].values for s in states), err_msg=name)


# Threads as processes -----------------------------------------------------------------------


@pytest.fixture
def together(monkeypatch):
    """Return a function that calls another in several "processes" at once."""
    mine = threading.local()

    def find(store, devices):
        return Crew(store, mine.index, mine.count) if mine.count > 1 else Alone()

    def run(count, call):
        def one(index):
            mine.index, mine.count = index, count
            return call()

        with futures.ThreadPoolExecutor(count) as pool:
            return [pool.submit(one, index) for index in range(count)]

    monkeypatch.setattr(api, "find_crew", find)
    monkeypatch.setattr(processes, "SILENCE", 1.5)
    monkeypatch.setattr(processes, "BEAT", 0.1)
    monkeypatch.setattr(processes, "PATIENCE", 10.0)
    return run


def sample(store, kernel=None, target=TARGET, **options):
    return sk.sample(target, kernel, store=store, progress=False, **SETTINGS | options)


KERNELS = {
    "NUTS": sk.NUTS(max_treedepth=3),
    "HMC": sk.HMC(),
    "MCLMC": sk.MCLMC(),
    "RandomWalk": sk.RandomWalk(),
}


@pytest.mark.parametrize(("name", "count"), [("NUTS", 2), ("NUTS", 4), *((n, 3) for n in KERNELS)])
def test_as_one_process(name, count, together, tmp_path):
    """Chains are dealt in any way: draws, statistics, warm-up and states are the same bits."""
    straight = together(1, lambda: sample(None, KERNELS[name]))[0].result()
    jobs = together(count, lambda: sample(tmp_path / "run.zarr", KERNELS[name]))
    for job in jobs:  # every process returns the whole run
        assert_same(job.result(), straight)
    assert [p.name for p in tmp_path.iterdir()] == ["run.zarr"]
    # A batch is run whole by every process, and written by one.
    one_by_one = straight["sampler"].attrs["layout"] == "chain by chain"
    assert one_by_one == (name != "HMC")
    assert Store.open(tmp_path / "run.zarr").chain_block == (1 if one_by_one else 4)


def test_go_on_with_another_number(together, tmp_path):
    """1, 2, 4 and 3 processes take turns at one run."""
    path = tmp_path / "run.zarr"
    straight = together(1, lambda: sample(None, KERNELS["NUTS"], draws=70))[0].result()
    together(1, lambda: sample(path, KERNELS["NUTS"], draws=10))
    for count in (2, 4, 3):
        jobs = together(count, lambda: sk.resume(path, TARGET, draws=20, progress=False))
    for job in jobs:
        assert_same(job.result(), straight)


def test_a_stop_rule_is_asked_by_all(together, tmp_path):
    rule = {"until": sk.Converged(rhat=1.5, ess=150), "draws": 3000, "keep_warmup": False}
    straight = together(1, lambda: sample(None, KERNELS["NUTS"], **rule))[0].result()
    assert 100 <= straight["posterior"].sizes["draw"] < 3000
    jobs = together(2, lambda: sample(tmp_path / "run.zarr", KERNELS["NUTS"], **rule))
    for job in jobs:
        assert_same(job.result(), straight)


def test_lost_chains_are_restarted(together, tmp_path, monkeypatch):
    """Chain 2 is called lost by process 0 and restarted by the process that runs it."""
    monkeypatch.setattr(loop, "lost_chains", lambda *seen: [2])
    straight = together(1, lambda: sample(None, KERNELS["NUTS"]))[0].result()
    jobs = together(2, lambda: sample(tmp_path / "run.zarr", KERNELS["NUTS"]))
    for job in jobs:
        assert_same(job.result(), straight)
        restarts = json.loads(job.result()["sampler"].attrs["restarts"])
        assert [r["chain"] for r in restarts] == [2, 2]


def test_an_interrupt_of_one_ends_all_at_the_same_draw(together, tmp_path, monkeypatch):
    wait, rounds = loop._wait, []

    def interrupted(jobs):
        mine = threading.get_ident()
        rounds.append(mine)
        return wait(jobs) or (mine == rounds[0] and rounds.count(mine) > 5)

    monkeypatch.setattr(loop, "_wait", interrupted)
    for name in ("ROUND_SECONDS", "FIRST_ROUND", "QUICK_ROUND"):
        monkeypatch.setattr(loop, name, 0)  # rounds of one tick
    jobs = together(2, lambda: sample(tmp_path / "run.zarr", KERNELS["NUTS"], warmup=2))
    runs = [job.result() for job in jobs]
    assert [r["posterior"].sizes["draw"] for r in runs] == [4, 4]
    assert all(r["sampler"].attrs["interrupted"] for r in runs)
    monkeypatch.undo()
    whole = sk.resume(tmp_path / "run.zarr", TARGET, progress=False)
    assert_same(whole, sample(None, KERNELS["NUTS"], warmup=2))


def test_an_error_of_one_ends_all(together, tmp_path):
    """The store cannot be made by process 0: the other says whose error it was."""
    (tmp_path / "run.zarr").write_text("in the way")
    first, second = together(2, lambda: sample(tmp_path / "run.zarr", KERNELS["RandomWalk"]))
    with pytest.raises(StoreError, match="something is there already"):
        first.result()
    with pytest.raises(ProcessError, match=r"Process 0 of 2 ended: StoreError: .*something is"):
        second.result()


def test_too_few_chains(together, tmp_path):
    jobs = together(3, lambda: sample(tmp_path / "run.zarr", KERNELS["RandomWalk"], chains=2))
    for job in jobs:
        with pytest.raises((SettingsError, ProcessError), match="cannot be dealt to 3 processes"):
            job.result()


def test_draws_of_several_processes_need_a_store(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(SettingsError, match=r"2 processes share this run.*Give store="):
        sample(None)
    here = {"devices": jax.local_devices(), "draws": 2, "warmup": 0}
    run = sample(None, sk.RandomWalk(1.0), **here)  # each process by itself
    with pytest.raises(SettingsError, match=r"Give store="):
        sk.resume(run, TARGET, draws=2)


def test_files_of_one_process_are_not_shared_by_machines(together, tmp_path, monkeypatch):
    together(1, lambda: sample(tmp_path / "run.zarr", KERNELS["RandomWalk"], draws=2))
    monkeypatch.setattr(processes.socket, "gethostname", lambda: str(threading.get_ident()))
    jobs = together(2, lambda: sk.resume(tmp_path / "run.zarr", TARGET, draws=2))
    for job in jobs:
        with pytest.raises((StoreError, ProcessError), match="2 machines cannot write"):
            job.result()


# The crew -----------------------------------------------------------------------------------


def crews(tmp_path, count):
    return [Crew(tmp_path / "run.zarr", index, count) for index in range(count)]


def each(members, call):
    with futures.ThreadPoolExecutor(len(members)) as pool:
        return [pool.submit(call, member) for member in members]


def test_gather(tmp_path):
    """Messages arrive whole, in order and from everybody, however the processes dawdle."""

    def talk(crew):
        rng = np.random.default_rng(crew.index)
        with crew:
            for turn in range(60):
                if rng.random() < 0.1:
                    time.sleep(0.01)
                size = 1 + (turn * 37) % 4000
                heard = crew.gather({"who": crew.index, "x": np.full(size, turn)})
                assert [int(h["who"]) for h in heard] == [0, 1, 2]
                assert all(np.array_equal(h["x"], np.full(size, turn)) for h in heard)
            return crew.agree(10 + crew.index)

    assert [int(job.result()) for job in each(crews(tmp_path, 3), talk)] == [10, 10, 10]
    assert not meeting_place(tmp_path / "run.zarr").exists()


def test_what_a_dead_crew_left_is_not_taken_for_news(tmp_path):
    """The files of a run that was killed have the right names and numbers, and are ignored."""

    def once(word):
        def talk(crew):
            crew.__enter__()
            heard = crew.gather({"word": word})
            crew._ended.set()  # killed: nothing is tidied up
            return [str(h["word"]) for h in heard]

        return talk

    for word in ("old", "new"):
        members = crews(tmp_path, 2)
        late = futures.ThreadPoolExecutor(2)
        second = late.submit(once(word), members[1])
        time.sleep(0.1)  # process 1 finds the old folder first
        first = late.submit(once(word), members[0])
        assert first.result(10) == second.result(10) == [word, word]
        late.shutdown()


def test_silence_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "SILENCE", 0.6)
    monkeypatch.setattr(processes, "BEAT", 0.05)

    def talk(crew):
        crew.__enter__()
        crew.gather({})
        if crew.index == 1:
            crew._ended.set()  # its heart stops
            return
        since = time.monotonic()
        with pytest.raises(ProcessError, match=r"Process 1 of 2 has not been heard of.*sk.resume"):
            crew.gather({})
        assert time.monotonic() - since < 10

    for job in each(crews(tmp_path, 2), talk):
        job.result()
    processes._left_behind.clear()


def test_the_slow_are_not_taken_for_dead(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "SILENCE", 0.5)
    monkeypatch.setattr(processes, "BEAT", 0.05)

    def talk(crew):
        with crew:
            time.sleep(2.0 * crew.index)
            return len(crew.gather({}))

    assert [job.result() for job in each(crews(tmp_path, 2), talk)] == [2, 2]


def test_a_clock_that_jumps_is_no_silence(tmp_path, monkeypatch):
    """A machine that slept for an hour finds the others as alive as before."""
    crew, now = Crew(tmp_path / "run.zarr", 0, 2), [0.0]
    crew.folder.mkdir()
    monkeypatch.setattr(processes.time, "monotonic", lambda: now[0])
    for _ in range(int(processes.SILENCE / processes.BEAT)):
        crew._check(1)
        now[0] += 3600
    crew._check(1)
    now[0] += 3600
    with pytest.raises(ProcessError, match="not been heard of"):
        crew._check(1)
    processes._left_behind.clear()


def test_who_never_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "PATIENCE", 0.3)
    with pytest.raises(ProcessError, match=r"Not all of the 2 processes.*share the file system"):
        Crew(tmp_path / "run.zarr", 0, 2).__enter__()
    with pytest.raises(ProcessError, match="Not all"):
        Crew(tmp_path / "other.zarr", 1, 2).__enter__()


def test_shares_are_blocks_of_all():
    for total in range(1, 20):
        for count in range(1, total + 1):
            blocks = [list(Crew("x", i, count).share(range(total))) for i in range(count)]
            assert [part for block in blocks for part in block] == list(range(total))
            assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


# Real processes -----------------------------------------------------------------------------

MODEL = """
import time
import jax, jax.numpy as jnp
import samplekit as sk

def wait(value):
    time.sleep(0.001)
    return value

def slow(x):
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    return -jnp.sum(x**2) / 2 + 0 * jax.pure_callback(wait, shape, x[0])

slow = sk.from_log_density(slow, 2)
quick = sk.targets.gaussian(2)
"""
# Quiet, for such a target cannot be diagnosed.
SLOW = ["model.py:slow", "-k", "randomwalk", "--set", "step_size=1.0", "-c", "3", "-w", "0", "-q"]
# A busy machine may take twice what is promised to the user (30 seconds).
SOON = 60


def environment():
    clean = {k: v for k, v in os.environ.items() if k not in {"XLA_FLAGS", "FORCE_COLOR"}}
    return clean | {"PYTHONPATH": str(ROOT)}


def start(folder, *words):
    (folder / "model.py").write_text(MODEL)
    return subprocess.Popen(
        [sys.executable, "-m", "samplekit.cli", *map(str, words)],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def children(process):
    out = subprocess.check_output(["pgrep", "-P", str(process.pid)], text=True)
    return [int(pid) for pid in out.split()]


def tick(path):
    try:
        text = (path / "zarr.json").read_text()
        return int(text.split('"tick": ')[1].split(",")[0])
    except (FileNotFoundError, IndexError):
        return -1


def wait_for(path, process, at):
    deadline = time.monotonic() + 240
    while tick(path) < at:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def straight_slow(folder, draws):
    target = load_target(str(folder / "model.py") + ":slow")
    options = {"draws": draws, "warmup": 0, "chains": 3, "progress": False}
    return target, sk.sample(target, sk.RandomWalk(1.0), **options)


def test_launch(tmp_path):
    """Two real processes: the draws of one, one table, one JSON object on stdout."""
    words = ["sample", "model.py:quick", "-w", "60", "-n", "100", "-s", "run.zarr", "--json"]
    process = start(tmp_path, "launch", "--processes", "2", "--", *words)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert json.loads(out)["draws"] == 100
    assert sorted(p.name for p in tmp_path.glob("*run*")) == ["run.zarr"]
    straight = sk.sample(sk.targets.gaussian(2), warmup=60, draws=100, progress=False)
    np.testing.assert_array_equal(open_run(tmp_path)["x"], straight["posterior"]["x"])


def open_run(folder):
    import arviz as az

    with az.from_zarr(folder / "run.zarr") as tree:
        return tree["posterior"].to_dataset().load()


def kill_one(folder, index, count=2, draws=1500):
    """Launch, kill a process while it draws; return the error."""
    words = ["sample", *SLOW, "-n", draws, "--store", "run.zarr"]
    process = start(folder, "launch", "-p", count, "--", *words)
    try:
        wait_for(folder / "run.zarr", process, 300)
        pids = children(process)
        os.kill(pids[index], signal.SIGKILL)
        since = time.monotonic()
        _, err = process.communicate(timeout=SOON)
    finally:
        process.kill()
    assert time.monotonic() - since < SOON
    assert process.returncode == 2, err
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    return err


def test_kill_one_process(tmp_path):
    """The others end with one error; what was seen is kept, and goes on to the same draws."""
    err = kill_one(tmp_path, 1)
    errors = [line for line in err.splitlines() if "killed" in line or "Error" in line]
    assert errors == [
        "samplekit: process 1 of 2 was killed by SIGKILL (out of memory?); the others were ended."
    ]
    reached = tick(tmp_path / "run.zarr")
    assert f"run.zarr holds {reached} of 1500 draws" in err
    assert "samplekit launch --processes 2 -- resume run.zarr model.py:slow" in err
    target, whole = straight_slow(tmp_path, 1500)
    seen = open_run(tmp_path)["x"]
    assert 300 <= reached == seen.sizes["draw"] < 1500
    np.testing.assert_array_equal(seen, whole["posterior"]["x"][:, :reached])
    sk.resume(tmp_path / "run.zarr", target, progress=False)
    np.testing.assert_array_equal(open_run(tmp_path)["x"], whole["posterior"]["x"])


@pytest.mark.slow
@pytest.mark.parametrize(("index", "again"), [(0, 2), (1, 3), (2, 1)])
def test_kill_any_and_go_on_with_any_number(index, again, tmp_path):
    err = kill_one(tmp_path, index, count=3, draws=2500)
    assert f"process {index} of 3 was killed by SIGKILL" in err
    _, whole = straight_slow(tmp_path, 2500)
    words = ["resume", "run.zarr", "model.py:slow", "--quiet"]
    process = start(tmp_path, "launch", "-p", again, "--", *words)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    np.testing.assert_array_equal(open_run(tmp_path)["x"], whole["posterior"]["x"])


@pytest.mark.slow
@pytest.mark.parametrize("dead", [0, 1])
def test_kill_without_a_launcher(dead, tmp_path):
    """Processes that a scheduler started notice by themselves that one is gone."""
    with processes.socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    words = ["sample", *SLOW, "-n", "2500", "--store", "run.zarr", "--distributed"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COORDINATOR_ADDRESS", address)
        both = []
        for index in range(2):
            patch.setenv("SAMPLEKIT_PROCESS", f"{index}/2")
            both.append(start(tmp_path, *words))
    wait_for(tmp_path / "run.zarr", both[0], 300)
    both[dead].kill()
    other = both[1 - dead]
    since = time.monotonic()
    _, err = other.communicate(timeout=SOON)
    assert time.monotonic() - since < SOON
    both[dead].communicate()
    assert other.returncode == 2
    assert "Traceback" not in err
    last = err.strip().splitlines()[-1]
    assert "run.zarr': go on with sk.resume" in last
    if dead == 0:  # JAX aborts the others, with pages of its own: the last line is ours
        assert last.startswith("samplekit: This process was aborted, see above: most likely pro")
    else:
        assert "Process 1 of 2 has not been heard of" in last
        assert "coordination" not in err  # nothing of JAX's own


@pytest.mark.slow
def test_ctrl_c_of_a_launch(tmp_path):
    words = ["sample", *SLOW, "-n", "100000", "--store", "run.zarr"]
    process = start(tmp_path, "launch", "-p", "2", "--", *words)
    wait_for(tmp_path / "run.zarr", process, 300)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SOON)
    assert process.returncode == 130, err
    assert (out, err) == ("run.zarr\n", "")
    known = Store.open(tmp_path / "run.zarr").sampler_attrs
    assert known["interrupted"]
    assert open_run(tmp_path).sizes["draw"] == known["tick"] >= 300


@pytest.mark.slow
def test_four_processes(tmp_path):
    words = ["sample", "model.py:quick", "-w", "200", "-n", "200", "-c", "6", "-s", "run.zarr"]
    process = start(tmp_path, "launch", "-p", "4", "--", *words)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    straight = sk.sample(sk.targets.gaussian(2), warmup=200, draws=200, chains=6, progress=False)
    np.testing.assert_array_equal(open_run(tmp_path)["x"], straight["posterior"]["x"])


@pytest.mark.slow
def test_a_batch_over_processes(tmp_path):
    """Many chains are one program of all processes, tuned together: equal to rounding."""
    words = ["sample", "model.py:quick", "-k", "mala", "-c", "24", "-w", "40", "-n", "5"]
    process = start(tmp_path, "launch", "-p", "2", "--", *words, "-s", "run.zarr", "--json")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert json.loads(out)["draws"] == 5
    target, options = sk.targets.gaussian(2), {"chains": 24, "warmup": 40, "progress": False}
    straight = sk.sample(target, sk.MALA(), draws=5, devices=jax.devices()[:1], **options)
    # Tuning is chaotic: rounding grows, but not in the first few dozen steps.
    np.testing.assert_allclose(
        open_run(tmp_path)["x"], straight["posterior"]["x"], rtol=1e-2, atol=1e-2
    )
    more = sk.resume(tmp_path / "run.zarr", target, draws=5, progress=False)
    assert more["posterior"].sizes["draw"] == 10


def test_launch_refuses_what_cannot_be_shared():
    for words, reason in [
        (["diagnose", "run.zarr"], "cannot be shared by processes"),
        (["sample", "model.py:quick"], "add --store run.zarr"),
    ]:
        done = CliRunner().invoke(app, ["launch", "-p", "2", "--", *words])
        assert done.exit_code == 2
        assert reason in done.stderr


def test_reading_what_is_not_committed(tmp_path):
    """Draws that were appended are read whole, across files and blocks of chains."""
    from samplekit.sampling.store import Variable

    groups = {"posterior": {"x": Variable((2,), np.dtype("float32"), ("x_dim",))}}
    for block in (1, 2, 3):
        store = Store.create(tmp_path / f"{block}", chains=3, groups=groups, chain_block=block)
        values = np.arange(3 * 2300 * 2, dtype=np.float32).reshape(3, 2300, 2)
        store.append("posterior", 0, slice(0, 2), {"x": values[:2]})
        other = Store.open(tmp_path / f"{block}")
        other.append("posterior", 0, slice(2, 3), {"x": values[2:]})
        np.testing.assert_array_equal(store.read("posterior", 2150)["x"], values[:, :2150])
        with pytest.raises(StoreError, match="Append the draws of every chain first"):
            store.commit({"posterior": 2300}, {}, sampler_attrs={})
        store.commit({"posterior": 2300}, {}, sampler_attrs={}, shared=True)
        assert jnp.all(Store.open(tmp_path / f"{block}").read("posterior", 2300)["x"] == values)
