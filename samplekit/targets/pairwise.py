"""Pairwise Markov random fields on any graph."""

import dataclasses
import functools
import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from samplekit.core.errors import TargetError
from samplekit.core.protocols import Scalar
from samplekit.core.pytree import pytree, static
from samplekit.targets.binary import Field, binary_space, logistic
from samplekit.targets.mixtures import Numbers, as_numbers, numbers
from samplekit.targets.space import Space


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """Edges and a coloring; static, compared by content."""

    sites: int
    edges: np.ndarray  # (edge, 2)
    colors: np.ndarray  # (site,)
    digest: bytes

    @classmethod
    def of(cls, sites: int, edges: np.ndarray) -> "Graph":
        """Color the graph greedily, sites with most neighbors first (Welsh and Powell 1967)."""
        neighbors: list[list[int]] = [[] for _ in range(sites)]
        for i, j in edges.tolist():
            neighbors[i].append(j)
            neighbors[j].append(i)
        colors = np.full(sites, -1)
        for site in sorted(range(sites), key=lambda i: -len(neighbors[i])):
            taken = {int(colors[j]) for j in neighbors[site]}
            colors[site] = next(c for c in range(len(taken) + 1) if c not in taken)
        digest = hashlib.sha256(str(sites).encode() + edges.tobytes()).digest()
        return cls(sites, edges, colors, digest)

    def __eq__(self, other: object) -> bool:
        """Compare by content."""
        return isinstance(other, Graph) and self.digest == other.digest

    def __hash__(self) -> int:
        """Hash by content."""
        return hash(self.digest)

    def __repr__(self) -> str:
        """Show sizes."""
        return f"Graph({self.sites} sites, {len(self.edges)} edges, {self.colors.max() + 1} colors)"

    @functools.cached_property
    def order(self) -> np.ndarray:
        """The sites, color by color."""
        return np.argsort(self.colors, kind="stable")

    @functools.cached_property
    def blocks(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For every color, the neighbors of its sites, places in `order`, and their edges.

        Rows are filled up with one site and one edge that do not exist.
        """
        place = np.empty(self.sites, np.int64)
        place[self.order] = np.arange(self.sites)
        ends = place[self.edges]  # both ends, by place
        owner = np.concatenate([ends[:, 0], ends[:, 1]])
        other = np.concatenate([ends[:, 1], ends[:, 0]])
        edge = np.tile(np.arange(len(self.edges)), 2)
        sort = np.argsort(owner, kind="stable")
        owner, other, edge = owner[sort], other[sort], edge[sort]
        degree = np.bincount(owner, minlength=self.sites)
        rank = np.arange(len(owner)) - np.repeat(np.cumsum(degree) - degree, degree)
        blocks, start = [], 0
        for size in np.bincount(self.colors).tolist():
            mine = (owner >= start) & (owner < start + size)
            shape = (size, int(degree[start : start + size].max(initial=0)))
            near, via = np.full(shape, self.sites), np.full(shape, len(self.edges))
            near[owner[mine] - start, rank[mine]] = other[mine]
            via[owner[mine] - start, rank[mine]] = edge[mine]
            blocks.append((near, via))
            start += size
        return blocks


@pytree
class PairwiseField(Field):
    """Two values on the sites of a graph: log p = Σ_i u_i x_i + Σ_ij w_ij x_i x_j."""

    unary: Numbers  # u, shaped as x
    weights: Numbers  # w, one for each edge
    graph: Graph = static()
    space: Space = static()

    def log_density(self, x: Array, /) -> Scalar:
        """Return log p(x) up to a constant; `x` may be real, for gradients."""
        flat, unary, weights = self._numbers(x)
        first, second = self.graph.edges.T
        return unary @ flat + jnp.sum(weights * flat[first] * flat[second])

    def log_odds(self, x: Array, /) -> Array:
        """Return the log odds (high − low) (u_i + Σ_j w_ij x_j) of every site."""
        flat, unary, weights = self._numbers(x)
        first, second = self.graph.edges.T
        pull = unary.at[first].add(weights * flat[second]).at[second].add(weights * flat[first])
        return (self.values[1] - self.values[0]) * pull.reshape(self.shape)

    def gibbs(self, key: Array, x: Array, /) -> Array:
        """Draw every site once given the others, all sites of one color at a time."""
        low, high = (jnp.asarray(v, x.dtype) for v in self.values)
        flat, unary, weights = self._numbers(x)
        order = self.graph.order
        bits = jax.random.bits(key, order.shape, np.uint32)
        # What the neighbors must add up to at least.
        needed = logistic(bits, unary.dtype) / (self.values[1] - self.values[0]) - unary[order]
        weights = jnp.append(weights, 0)
        now, start = flat[order], 0
        for near, via in self.graph.blocks:
            stop = start + len(near)
            pull = jnp.sum(weights[via] * jnp.append(now, 0)[near], axis=1)
            drawn = jnp.where(pull > needed[start:stop], self.values[1], self.values[0])
            now = now.at[start:stop].set(drawn.astype(now.dtype))
            start = stop
        chosen = now[np.argsort(order)].reshape(self.shape)
        return jnp.where(chosen == self.values[1], high, low)

    def at(self, level: Any, /) -> "PairwiseField":
        """Return the field at inverse temperature `level`: the density p^β."""
        unary, weights, beta = numbers(self.unary, self.weights, level)
        return dataclasses.replace(self, unary=beta * unary, weights=beta * weights)

    @property
    def colors(self) -> np.ndarray:
        """The color of every site, shaped as `x`; neighbors have different ones."""
        return self.graph.colors.reshape(self.shape)

    def _numbers(self, x: Array) -> tuple[Array, Array, Array]:
        flat = jnp.ravel(jnp.asarray(x))
        if not jnp.issubdtype(flat.dtype, jnp.floating):
            flat = flat.astype(jnp.result_type(float))
        unary, weights = (jnp.asarray(a, flat.dtype) for a in (self.unary, self.weights))
        return flat, unary.ravel(), weights

    def _quadratic(self) -> tuple[np.ndarray, np.ndarray]:
        weights = np.zeros((self.graph.sites,) * 2)
        np.add.at(weights, tuple(self.graph.edges.T), np.asarray(self.weights, np.float64))
        return np.asarray(self.unary, np.float64).ravel(), weights + weights.T


def pairwise_field(
    unary: ArrayLike,
    edges: ArrayLike,
    weights: ArrayLike = 1.0,
    *,
    values: tuple[int, int] = (-1, 1),
) -> PairwiseField:
    """Return a pairwise Markov random field, log p(x) = Σ_i u_i x_i + Σ_ij w_ij x_i x_j.

    Parameters
    ----------
    unary
        u, of any shape: that of the positions, which are int8.
    edges
        Pairs of sites (edge, 2), numbered as in `unary.ravel()`.
    weights
        w: one for each edge, or one for all.
    values
        The values of a site: (-1, 1) or (0, 1).

    Notes
    -----
    The graph is colored greedily here; a sweep has one block for each color, so that a dense graph
    of hundreds of sites takes long to compile. Exact moments up to 20 sites (`exact`).

    Examples
    --------
    >>> import samplekit as sk
    >>> target = sk.targets.pairwise_field([0.5, 0.0, -0.5], [(0, 1), (1, 2)], 0.8, values=(0, 1))
    >>> target.colors, target.mean.round(3)
    (array([1, 0, 1]), array([0.74 , 0.721, 0.519]))
    """
    u, w, pairs = as_numbers(unary, "unary"), as_numbers(weights, "weights"), np.asarray(edges)
    if tuple(values) not in ((-1, 1), (0, 1)):
        raise TargetError(f"values={values!r} are not known: give (-1, 1) or (0, 1).")
    if pairs.size == 0:
        pairs = np.zeros((0, 2), np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise TargetError(
            f"edges has shape {pairs.shape} and dtype {pairs.dtype}, but pairs of "
            "site numbers are needed: integers of shape (edge, 2)."
        )
    if pairs.size and (pairs.min() < 0 or pairs.max() >= u.size):
        raise TargetError(
            f"edges name the sites {pairs.min()} to {pairs.max()}, but unary has "
            f"{u.size}, numbered from 0."
        )
    if np.any(pairs[:, 0] == pairs[:, 1]):
        raise TargetError(
            "An edge joins a site to itself. Leave it out: x² is the same for both "
            "values of (-1, 1), and x for (0, 1), which belongs to unary."
        )
    if w.shape not in ((), (len(pairs),)):
        raise TargetError(
            f"weights has shape {w.shape} for {len(pairs)} edges. Give one number "
            "or one for each edge."
        )
    space = binary_space(u.shape or (1,), (int(values[0]), int(values[1])))
    graph = Graph.of(u.size, pairs.astype(np.int64))
    return PairwiseField(
        u.reshape(space.leaves[0].shape), np.broadcast_to(w, len(pairs)).copy(), graph, space
    )
