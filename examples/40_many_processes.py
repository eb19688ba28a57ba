"""One run shared by two processes; one is killed, three go on: the same draws, bit for bit."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import arviz as az
import numpy as np
from _style import BLUE, COLORS, INK, VERMILION, options, plt, save

import samplekit as sk

CHAINS = 6
target = sk.targets.banana()


def launch(processes, folder, *words):
    """Start `samplekit launch`, whose command names the target by this file."""
    words = ["launch", "--processes", str(processes), "--", *map(str, words), "--quiet"]
    return subprocess.Popen([sys.executable, "-m", "samplekit.cli", *words], cwd=folder)


def stored(store):
    """Return the steps that are committed by now."""
    try:
        root = json.loads((store / "zarr.json").read_text())
    except FileNotFoundError:
        return 0
    return root["consolidated_metadata"]["metadata"]["sampler"]["attributes"].get("tick", 0)


def kill_one(launcher):
    """Kill the second process of a launch, as a machine that runs out of memory would."""
    children = subprocess.check_output(["pgrep", "-P", str(launcher.pid)], text=True).split()
    os.kill(int(children[1]), signal.SIGKILL)


def main():
    args = options(__doc__)
    draws = 20_000 if args.quick else 100_000
    model = f"{Path(__file__).resolve()}:target"
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "run.zarr"
        launcher = launch(2, folder, "sample", model, "-c", CHAINS, "-n", draws, "-s", store)
        while launcher.poll() is None and stored(store) <= 1000:
            time.sleep(0.01)
        if launcher.poll() is None:
            kill_one(launcher)
        since = time.perf_counter()
        launcher.wait()
        found = az.from_zarr(store)["posterior"].sizes["draw"]
        print(f"all ended {time.perf_counter() - since:.1f} s later; {found:,} draws are stored")
        assert launch(3, folder, "resume", store, model).wait() == 0
        x = az.from_zarr(store)["posterior"]["x"].values
    straight = sk.sample(target, chains=CHAINS, draws=draws)
    same = np.array_equal(x, straight.posterior["x"])
    print("two processes, then three, give the draws of one, bit for bit:", same)
    assert same

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8))
    for chain in range(CHAINS):
        for start, stop, count in ((0, found, 2), (found, draws, 3)):
            process = chain * count // CHAINS
            left.barh(chain, stop - start, 0.8, start, color=COLORS[process], edgecolor="white")
            text = f"process {process}"
            if stop - start > draws / 8:
                left.text((start + stop) / 2, chain, text, ha="center", va="center", color="white")
    left.axvline(found, color=INK, lw=1.5)
    left.set(title="Who ran which chain", xlabel="draw", ylabel="chain")
    around = slice(max(0, found - 300), min(draws, found + 300))
    right.plot(np.arange(draws)[around], x[3, around, 0], lw=0.7, color=BLUE)
    right.axvline(found, color=VERMILION, lw=1.5, label="process 1 killed, 3 went on")
    right.set(title="The join does not show", xlabel="draw", ylabel="x[0], chain 3")
    right.set_ylim(top=right.get_ylim()[1] + 2)
    right.legend(loc="upper right")
    save(figure, args, "40_processes")


if __name__ == "__main__":
    main()
