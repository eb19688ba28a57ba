"""How far a score is from a gradient: the work around closed loops."""

import dataclasses
from typing import Any

import numpy as np

from samplekit.core.errors import SettingsError
from samplekit.diagnostics.scores import place, score_rows

_NODES = 8  # Gauss–Legendre, of each panel of an edge: exact to degree 15
# Panels are doubled until the work changes by less than this part of itself or of the edges' own
# work (rounding in float32 is some 1e-6 of that), or there are so many.
_SETTLED, _ROUNDING = 0.02, 1e-5
_MOST_PANELS = 32


@dataclasses.dataclass(frozen=True)
class LoopWork:
    """What `closed_loop_work` found, in nats.

    Attributes
    ----------
    work
        Root mean square of ∮ s·dx over the loops: by how much log p differs between two ways.
    standard_error
        Of `work`.
    relative
        `work` over `edge`.
    edge
        Root mean square of ∫ s·dx along one edge: how much log p differs between two draws.
    worst
        Largest |∮ s·dx|.
    worst_loop
        Corners of that loop (corner, dim), unconstrained.
    quadrature_error
        By how much the last doubling of the nodes changed the loops, root mean square.
    loops
        Number of loops.
    """

    work: float
    standard_error: float
    relative: float
    edge: float
    worst: float
    worst_loop: np.ndarray
    quadrature_error: float
    loops: int


def closed_loop_work(target: Any, run: Any, *, loops: int = 400, seed: int = 0) -> LoopWork:
    """Measure how far a score is from being a gradient, where a run has been.

    A Metropolis step from a score alone (`ScoreMALA`) integrates the score along a path to learn
    Δlog p. If the score is no gradient, as a learned one, another path gives another answer, and no
    density is sampled. The difference of two ways between draws is the work around a closed loop.

    Parameters
    ----------
    target
        Anything with a score. For a density the work is zero, up to rounding and quadrature.
    run
        A run, its path, or an array of unconstrained positions (draw, dim) or (chain, draw, dim).
    loops
        Number of triangles; their corners are draws of the run, each used once while they last.
    seed
        Of the choice of corners.

    Returns
    -------
    A `LoopWork`: work, standard_error, relative, edge, worst, worst_loop, quadrature_error.

    Notes
    -----
    The work around a triangle of draws is ∮ s·dx, for its edges ∫₀¹ s(a + t(b − a))·(b − a) dt by
    Gauss–Legendre nodes, in panels that are doubled until the work settles. `work` nats is the
    error of Δlog p, hence of the log acceptance, that going around makes; a reversible chain needs
    zero (Kolmogorov's criterion; Kelly 1979, Reversibility and Stochastic Networks, §1.5). For a
    rotation, s(x) = −x + cJx, it is 2c times the area of the loop. Coordinates are unconstrained.
    Costs 24 scores a loop and panel.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, samplekit as sk
    >>> draws = np.random.default_rng(0).normal(size=(1000, 2))
    >>> turn = jnp.array([[0.0, 0.3], [-0.3, 0.0]])
    >>> closed_loop_work(sk.from_score(lambda x: -x, dim=2), draws).work < 1e-5
    True
    >>> closed_loop_work(sk.from_score(lambda x: turn @ x - x, dim=2), draws).work > 0.3
    True
    """
    if loops < 2:
        raise SettingsError(f"loops={loops} give no standard error. Give 2 or more.")
    placed = place(run, target)
    rows = placed.positions.reshape(-1, placed.positions.shape[-1])
    if len(rows) < 3:
        raise SettingsError(f"{len(rows)} draws span no triangle. Give a run of 3 draws or more.")
    rng = np.random.default_rng(seed)
    triangles = len(rows) // 3  # of one shuffle
    shuffles = [rng.permutation(len(rows))[: 3 * triangles] for _ in range(0, loops, triangles)]
    corners = rows[np.concatenate(shuffles)[: 3 * loops]].reshape(loops, 3, -1)
    works, edges, error = _settled(placed.flat, corners)
    work = float(np.sqrt(np.mean(works**2)))
    spread = float(np.std(works**2, ddof=1)) / np.sqrt(loops)  # of the mean square; rms by d√x
    edge = float(np.sqrt(np.mean(edges**2)))
    worst = int(np.argmax(np.abs(works)))
    return LoopWork(
        work=work,
        standard_error=float(spread / (2 * work)) if work > 0 else 0.0,
        relative=work / edge if edge > 0 else 0.0,
        edge=edge,
        worst=float(np.abs(works[worst])),
        worst_loop=corners[worst],
        quadrature_error=error,
        loops=loops,
    )


def _settled(flat: Any, corners: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the work of loops and of edges, with as many panels as it takes."""
    edges = edge_work(flat, corners, 1)
    panels, error = 1, np.inf
    while panels < _MOST_PANELS:
        panels *= 2
        finer = edge_work(flat, corners, panels)
        works = finer.sum(axis=1)
        error = float(np.sqrt(np.mean((works - edges.sum(axis=1)) ** 2)))
        edges = finer
        size, scale = np.sqrt(np.mean(works**2)), np.sqrt(np.mean(edges**2))
        if error <= max(_SETTLED * size, _ROUNDING * scale):
            break
    return edges.sum(axis=1), edges, error


def edge_work(flat: Any, corners: np.ndarray, panels: int) -> np.ndarray:
    """Return ∫ s·dx along the edges of closed polygons (loop, corner, dim), as (loop, corner)."""
    at, weights = np.polynomial.legendre.leggauss(_NODES)
    times = ((np.arange(panels)[:, None] + (at + 1) / 2) / panels).ravel()
    weights = np.tile(weights / (2 * panels), panels)
    delta = np.roll(corners, -1, axis=1) - corners
    points = corners[:, :, None] + times[:, None] * delta[:, :, None]
    scores = score_rows(flat, points.reshape(-1, corners.shape[2])).reshape(points.shape)
    return np.einsum("lcpd,lcd,p->lc", scores, delta, weights)
