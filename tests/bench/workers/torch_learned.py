"""Denoising training in torch, fused Adam: `... torch_learned`, Python 3.11."""

import os
import time

import numpy as np
import torch

from tests.bench.serve import serve

BATCH, BATCHES, SIGMA, RATE = 512, 100, 0.3, 1e-3


def contender():
    rows = np.random.default_rng(0).normal(size=(BATCH * BATCHES, 2)).astype(np.float32)
    rows = torch.tensor(rows)
    layers = [torch.nn.Linear(2, 128), torch.nn.Linear(128, 128), torch.nn.Linear(128, 2)]
    net = torch.nn.Sequential(layers[0], torch.nn.SiLU(), layers[1], torch.nn.SiLU(), layers[2])
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE, fused=True)

    def epoch():
        for batch in rows[torch.randperm(len(rows))].split(BATCH):
            noise = torch.randn_like(batch)
            off = net(batch + SIGMA * noise) + noise / SIGMA
            loss = (off * off).sum(1).mean() / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return float(loss)

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
        last = [epoch() for _ in range(3)][-1]
        return lambda: {"batches": 3 * BATCHES, "loss": last}

    return run, {"threads": threads}


if __name__ == "__main__":
    serve(contender)
