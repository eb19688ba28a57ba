"""A run that is killed and goes on, bit for bit; and one that stops when it has enough."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import arviz as az
import numpy as np
from _style import BLUE, INK, VERMILION, options, plt, save

import samplekit as sk
from samplekit.sampling.convergence import summarize

KERNEL = sk.NUTS(target_accept=0.95)


def stored_steps(store):
    """Return the steps that the store on disk holds by now."""
    try:
        root = json.loads((store / "zarr.json").read_text())
    except FileNotFoundError:
        return 0
    return root["consolidated_metadata"]["metadata"]["sampler"]["attributes"].get("tick", 0)


def start_and_kill(store, draws):
    """Sample in another process, and kill it (kill -9) somewhere on the way."""
    child = subprocess.Popen([sys.executable, __file__, "--child", str(store), str(draws)])
    while child.poll() is None and stored_steps(store) < 1000 + draws // 4:
        time.sleep(0.01)
    child.kill()
    child.wait()


def main():
    args = options(__doc__)
    target = sk.targets.banana()
    draws = 20_000 if args.quick else 100_000
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "run.zarr"
        start_and_kill(store, draws)
        found = az.from_zarr(store)["posterior"].sizes["draw"]
        print(f"killed; the store opens and has {found:,} of {draws:,} draws")
        run = sk.resume(store, target)
        straight = sk.sample(target, KERNEL, draws=draws, seed=3)
        same = np.array_equal(run.posterior["x"], straight.posterior["x"])
        print("resumed run equals an uninterrupted one, bit for bit:", same)
        assert same

    enough = sk.sample(target, KERNEL, draws=draws, seed=3, until=sk.Converged(ess=1000))
    stopped = enough.posterior.sizes["draw"]
    print(f"until=Converged(ess=1000): stopped after {stopped:,} draws of each chain")

    x = run.posterior["x"].values
    looks = np.unique(np.geomspace(50, min(draws, 4 * stopped), 25).astype(int))
    worst = [summarize({"x": x[:, :n]}) for n in looks]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8))
    around = slice(max(0, found - 300), found + 300)
    left.plot(np.arange(draws)[around], x[0, around, 0], lw=0.7, color=BLUE)
    left.axvline(found, color=VERMILION, lw=1.5, label="killed here, then resumed")
    left.set(
        title="Killed and resumed: the join does not show", xlabel="draw", ylabel="x[0], chain 0"
    )
    left.set_ylim(top=left.get_ylim()[1] + 2)
    left.legend(loc="upper right")
    right.loglog(looks, [min(w.ess_bulk, w.ess_tail) for w in worst], "o-", ms=3, color=BLUE)
    right.axhline(1000, color=INK, lw=1, ls="--", label="asked for")
    right.axvline(stopped, color=VERMILION, lw=1.5, label=f"stopped at {stopped:,}")
    right.set(
        title="Converged(ess=1000) stops the run", xlabel="draws of each chain", ylabel="worst ESS"
    )
    right.legend()
    save(figure, args, "05_survive")


if __name__ == "__main__":
    if "--child" in sys.argv:
        path, count = sys.argv[-2:]
        sk.sample(sk.targets.banana(), KERNEL, draws=int(count), seed=3, store=path)
    else:
        main()
