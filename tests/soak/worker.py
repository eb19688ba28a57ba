"""What a soak does to samplekit: each command is a process that may be killed at any instant."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

# A run of some seconds in many rounds, tuned and not, that must come out the same each time.
DRAWS, WARMUP, CHAINS = 4000, 600, 2
EPOCHS = 60


def target():
    import samplekit as sk

    return sk.targets.gaussian(2, covariance=np.array([[1.0, 0.8], [0.8, 2.0]], np.float32))


def sample(path, seed):
    """Begin a run, or go on with the one that is there."""
    import samplekit as sk
    from samplekit.sampling import loop

    loop.ROUND_SECONDS = 0.02  # many commits
    wait = loop._wait

    def slowly(jobs):
        time.sleep(0.01)  # so that there is time to be interrupted
        return wait(jobs)

    loop._wait = slowly
    kernel = sk.NUTS(max_treedepth=3)
    if Path(path).exists():
        return sk.resume(path, target(), progress=False)
    settings = {"draws": DRAWS, "warmup": WARMUP, "chains": CHAINS, "keep_warmup": True}
    return sk.sample(target(), kernel, store=path, seed=int(seed), progress=False, **settings)


def train(path, seed):
    """Train a small network, from its checkpoint if there is one; keep its weights."""
    import samplekit as sk

    rows = np.random.default_rng(0).normal(size=(2000, 2)).astype(np.float32)
    model = sk.ScoreNetwork(
        epochs=EPOCHS, random_state=int(seed), progress=False, checkpoint=f"{path}.npz"
    )
    model.fit(rows)
    np.save(f"{path}.tmp.npy", model.stein_score(rows[:50]))
    Path(f"{path}.tmp.npy").rename(f"{path}.npy")


def clock(path, seed):
    """Sample while all clocks jump back and forth by hours."""
    random = np.random.default_rng(int(seed))
    for name in ("time", "perf_counter", "monotonic"):
        real = getattr(time, name)

        def jumping(real=real):
            return real() + float(random.choice([0.0, 3600.0, -3600.0]))

        setattr(time, name, jumping)
    sample(path, seed)


def disk(folder, seed, kind):
    """Sample on a disk that is full, or read-only, for a while; say how that ended.

    Runs in a mount namespace of its own, which the driver makes.
    """
    from samplekit.core.errors import StoreError

    place = Path(folder)
    store = place / "run.zarr"

    def mount(*options):
        subprocess.run(["mount", *options, str(place)], check=True)

    mount("-t", "tmpfs", "-o", "size=300k" if kind == "full" else "size=64m", "tmpfs")
    error = ""
    try:
        if kind == "read-only":
            interrupted(store, seed)
            mount("-o", "remount,ro")
        sample(store, seed)
    except StoreError as found:
        error = str(found)
    mount("-o", "remount,rw,size=64m")
    if not store.exists():  # there was not even room to begin
        sample(store, seed)
    tree = sample(store, seed)
    print(json.dumps({"error": error, "digest": digest(tree)}))


def interrupted(store, seed):
    """Begin a run in another process, and kill it when it has something to lose."""
    command = [sys.executable, "-m", "tests.soak.worker", "sample", str(store), str(seed)]
    process = subprocess.Popen(command)
    while not (store / "zarr.json").exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.5)
    process.kill()
    process.wait()


def report(path):
    """Diagnose a run and write its report."""
    import samplekit as sk

    sk.diagnose(path)
    sk.report(path, f"{path}.html")


def digest(tree):
    """Return a checksum of all draws and statistics."""
    import zlib

    total = 0
    for group in sorted(tree.children):
        if group.endswith(("posterior", "sample_stats")):
            for name in sorted(tree[group].data_vars):
                total = zlib.crc32(np.ascontiguousarray(tree[group][name].values), total)
    return total


def open_digest(path):
    """Say what a stored run holds, checked."""
    import xarray as xr

    from samplekit.sampling.store import Store

    Store.open(path).check()
    tree = xr.open_datatree(path, engine="zarr")
    finished = bool(tree["sampler"].attrs["finished"])
    print(json.dumps({"digest": digest(tree), "finished": finished}))


def tiny(count):
    """Make many small runs, fits and diagnoses in one process; tell its memory on the way."""
    import samplekit as sk
    from tests.bench.workers.closed_form import memory

    runs = [
        (sk.targets.banana(), sk.MALA(0.5, metric=None)),
        (sk.targets.gaussian([1.0, 2.0]), sk.NUTS(0.5, metric=None)),
        (sk.targets.double_well(), sk.RandomWalk(1.0)),
    ]
    rows = np.random.default_rng(0).gamma(2.0, size=(500, 1))
    settings = {"warmup": 0, "draws": 10, "chains": 2, "progress": False}
    for number in range(int(count)):
        target, kernel = runs[number % len(runs)]
        tree = sk.sample(target, kernel, seed=number, **settings)
        if number % 50 == 0:
            sk.families.gamma().fit(rows)
            sk.diagnose(tree)
        if (number + 1) % max(1, int(count) // 20) == 0:
            print(json.dumps({"runs": number + 1, "mib": memory("VmRSS") / 2**20}), flush=True)


COMMANDS = {
    "sample": sample,
    "train": train,
    "clock": clock,
    "disk": disk,
    "report": report,
    "digest": open_digest,
    "tiny": tiny,
}

if __name__ == "__main__":
    # A soak that a shell started in the background hands down that Ctrl-C is to be ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    COMMANDS[sys.argv[1]](*sys.argv[2:])
