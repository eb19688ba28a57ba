"""The noise-conditional score of the annealing benchmark: its numbers, for JAX and torch alike."""

import numpy as np

# Noise from 20 to 0.1; the step η of x + (η²/2)s + ηz is this at the last level.
FIRST, LAST, STEP = 20.0, 0.1, 0.03


def weights():
    """Return the layers of the 2-128-128-2 network, and what log σ adds to the first."""
    rng = np.random.default_rng(5)
    shapes = [(2, 128), (128, 128), (128, 2), (1, 128)]
    return [(rng.normal(size=s) / np.sqrt(s[0])).astype(np.float32) for s in shapes]


def levels(count):
    """Return the noise levels, from large to small."""
    return np.geomspace(FIRST, LAST, count)
