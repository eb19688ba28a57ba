"""Annealed Langevin in torch: `... torch_anneal PARTICLES LEVELS STEPS`, Python 3.11."""

import math
import os
import sys
import time

import numpy as np
import torch
from torch.nn import functional

from tests.bench import scores
from tests.bench.serve import serve


def contender(particles, levels, steps):
    first, second, third, level = (torch.tensor(w) for w in scores.weights())
    sigmas = [float(s) for s in scores.levels(levels)]

    def score(x, sigma):
        h = functional.silu(x @ first + math.log(sigma) * level[0])
        h = functional.silu(h @ second)
        return 0.1 * (h @ third) / sigma - x / (1 + sigma**2)

    @torch.inference_mode()
    def go(count):
        x = scores.FIRST * torch.randn(particles, 2)
        for sigma in sigmas:
            eta = scores.STEP * sigma / sigmas[-1]
            for _ in range(count):
                x = x + 0.5 * eta**2 * score(x, sigma) + eta * torch.randn_like(x)
        return x

    def seconds(threads):
        torch.set_num_threads(threads)
        go(1)
        since = time.perf_counter()
        go(2)
        return time.perf_counter() - since

    threads = min((1, os.cpu_count() or 1), key=seconds)
    torch.set_num_threads(threads)

    def run(number):
        torch.manual_seed(number)
        x = go(steps).numpy()
        return lambda: {"finite": bool(np.isfinite(x).all()), "spread": float(x.std())}

    return run, {"threads": threads}


if __name__ == "__main__":
    numbers = [int(a) for a in sys.argv[1:4]]
    serve(lambda: contender(*numbers))
