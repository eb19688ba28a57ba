"""Train one machine in torch: `... torch_boltzmann VISIBLE HIDDEN`, Python 3.11."""

import os
import sys
import time

import numpy as np
import torch

from tests.bench.serve import serve

ROWS, BATCH = 10_000, 100


def fisher(v, w, b, c):
    """Return ½‖s‖² + tr ∇s by its closed form; torch differentiates it."""
    rho = torch.sigmoid(v @ w.T + b)
    s = rho @ w + c - v
    trace = (rho * (1 - rho)) @ (w * w).sum(1) - v.shape[1]
    return (0.5 * (s * s).sum(1) + trace).mean()


def contender(visible, hidden):
    random = np.random.default_rng(0)
    rows = torch.tensor(random.normal(size=(ROWS, visible)).astype(np.float32))
    w = torch.tensor(random.normal(0, 0.01, (hidden, visible)).astype(np.float32))
    params = [p.requires_grad_() for p in (w, torch.zeros(hidden), torch.zeros(visible))]
    optimizer = torch.optim.Adam(params, lr=1e-4)

    def epoch():
        for batch in rows[torch.randperm(ROWS)].split(BATCH):
            optimizer.zero_grad()
            fisher(batch, *params).backward()
            optimizer.step()

    def seconds(threads):
        torch.set_num_threads(threads)
        epoch()
        since = time.perf_counter()
        epoch()
        return time.perf_counter() - since

    threads = min((1, os.cpu_count() or 1), key=seconds)
    torch.set_num_threads(threads)

    def run(number):
        torch.manual_seed(number)
        for _ in range(3):
            epoch()
        return lambda: {"epochs": 3, "finite": bool(torch.isfinite(w).all())}

    return run, {"threads": threads}


if __name__ == "__main__":
    serve(lambda: contender(*map(int, sys.argv[1:3])))
