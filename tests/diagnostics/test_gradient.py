"""The work of a score around closed loops."""

import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit.diagnostics.gradient import closed_loop_work, edge_work
from samplekit.diagnostics.scores import place


def rotation(c):
    turn = np.array([[0.0, -c], [c, 0.0]], dtype=np.float32)
    return sk.from_score(lambda x: jnp.asarray(turn) @ x - x, dim=2)


def test_rotation_on_the_unit_circle():
    """FORMULAS.md §7: 2πc = 1.88496 for c = .3; a polygon of n corners has (n/2)sin(2π/n) for π."""
    n = 720
    angles = 2 * np.pi * np.arange(n) / n
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)[None]
    flat = place(circle, rotation(0.3)).flat
    work = edge_work(flat, circle, 1).sum()
    np.testing.assert_allclose(work, 0.3 * n * np.sin(2 * np.pi / n), rtol=1e-5)  # float32 scores
    np.testing.assert_allclose(work, 1.88496, rtol=5e-5)
    np.testing.assert_allclose(edge_work(flat, circle[:, ::-1], 1).sum(), -work, rtol=1e-5)


def test_triangles_of_draws():
    """The work of a rotation is 2c times the area, for every triangle."""
    draws = np.random.default_rng(0).normal(size=(1200, 2))
    result = closed_loop_work(rotation(0.3), draws, loops=400)
    a, b, c = result.worst_loop
    area = 0.5 * abs((b - a)[0] * (c - a)[1] - (b - a)[1] * (c - a)[0])
    np.testing.assert_allclose(result.worst, 0.6 * area, rtol=1e-4)
    # E[area²] of three standard normal points is 3/2: (b−a) and (c−a) have covariance 1 on a
    # diagonal of 2, so E det² = 2(2·2 − 1·1) = 6, and area = det/2.
    expected = 0.6 * np.sqrt(1.5)
    assert abs(result.work - expected) < 5 * result.standard_error < 0.3 * expected
    assert result.quadrature_error < 1e-5
    assert 0.2 < result.relative < 0.8
    assert result.loops == 400


def test_standard_error_is_that_of_replications():
    rng = np.random.default_rng(1)
    results = [
        closed_loop_work(rotation(0.3), rng.normal(size=(600, 2)), loops=200) for _ in range(40)
    ]
    spread = np.std([r.work for r in results], ddof=1)
    claimed = np.mean([r.standard_error for r in results])
    assert 0.65 < claimed / spread < 1.5  # a standard deviation of 40 is known to 11 %; 3 of those


@pytest.mark.parametrize(
    "target",
    [sk.targets.banana(), sk.targets.grid(), sk.targets.funnel(3), sk.targets.ring()],
    ids=["banana", "grid", "funnel", "ring"],
)
def test_a_gradient_does_no_work(target, key):
    result = closed_loop_work(target, np.asarray(target.draw(key, 600)), loops=100)
    assert result.work - 2 * result.quadrature_error < 1e-4 * result.edge
    assert result.relative < 0.02


def test_constrained_score_is_taken_where_kernels_move():
    from numpyro.distributions import constraints

    target = sk.from_score(lambda y: 2 / y - 1, dim=3, support=constraints.positive)
    draws = np.random.default_rng(2).gamma(3.0, size=(4, 100, 3)).astype(np.float32)
    assert closed_loop_work(target, {"x": draws}, loops=100).relative < 1e-4


def test_refusals():
    draws = np.zeros((10, 2))
    for words, call in {
        "loops=1": lambda: closed_loop_work(rotation(0.3), draws, loops=1),
        "span no triangle": lambda: closed_loop_work(rotation(0.3), draws[:2]),
        "no score": lambda: closed_loop_work(object(), draws),
    }.items():
        with pytest.raises(sk.errors.SamplekitError, match=words):
            call()
