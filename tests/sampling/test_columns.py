"""Batches by columns give what vmap gives, to rounding, or say that they cannot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit.sampling import program
from samplekit.sampling.columns import UnreadableError, map_columns
from samplekit.sampling.view import View

CHAINS = 300
# A few operations in another order: some units in the last place of float32, times the size.
ROUNDING = 1e-5

TARGETS = {
    "gaussian": lambda: sk.targets.gaussian(2, covariance=[[1.0, 0.5], [0.5, 2.0]]),
    "mixture": lambda: sk.targets.grid(3),
    "banana": sk.targets.banana,
    "funnel": lambda: sk.targets.funnel(3),
    "ring": sk.targets.ring,
    "student_t": lambda: sk.targets.student_t(2),
    "double_well": sk.targets.double_well,
}
KERNELS = {
    "Langevin": lambda: sk.Langevin(0.1),
    "MALA": lambda: sk.MALA(0.1),
    "HMC": lambda: sk.HMC(0.1, leapfrogs=5),
    "HMC, jittered": lambda: sk.HMC(0.1),
    "RandomWalk": lambda: sk.RandomWalk(0.3),
    "Barker": lambda: sk.Barker(0.3),
}


def _positions(dim: int) -> jax.Array:
    return jax.random.normal(jax.random.key(0), (CHAINS, dim))


def _same(found, expected) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        scale = max(1.0, float(np.max(np.abs(np.asarray(b, np.float64)), initial=0.0)))
        np.testing.assert_allclose(a, b, rtol=ROUNDING, atol=ROUNDING * scale)


@pytest.mark.parametrize("name", TARGETS)
def test_log_densities_and_scores(name: str) -> None:
    target = TARGETS[name]()
    view = View(target, flat=False).for_kernel
    x = _positions(sk.sample(target, draws=1, warmup=0, progress=False).posterior["x"].shape[-1])

    def both(x, _):
        return jax.value_and_grad(lambda y: view.log_density(y))(x)

    _same(map_columns(both, x, ()), jax.vmap(both, (0, None))(x, ()))


@pytest.mark.parametrize("name", KERNELS)
def test_moves(name: str) -> None:
    target = View(sk.targets.banana(), flat=False).for_kernel
    kernel = KERNELS[name]().prepare(2, np.float32)
    x = _positions(2)
    state = jax.vmap(lambda y: kernel.init(jax.random.key(0), y, target))(x)
    rows, shared = kernel.noise(jax.random.key(1), x[0], (CHAINS,))

    def move(own, common):
        (row, one), (kernel, shared, target) = own, common
        return kernel.move((row, shared), one, target)

    found = map_columns(move, (rows, state), (kernel, shared, target))
    _same(found, jax.vmap(move, (0, None))((rows, state), (kernel, shared, target)))


def test_loops_and_shapes() -> None:
    matrix = jnp.asarray([[1.0, 2.0, 3.0], [0.5, 0.1, 0.2]])

    def fn(x, count):
        y = jnp.concatenate([x[::-1], matrix @ x])
        y = jax.lax.fori_loop(0, count, lambda i, v: v * 0.5 + i.astype(v.dtype), y)
        y = jax.lax.fori_loop(0, 3, lambda _, v: jnp.roll(v, 1) + jnp.pad(x, (1, 1)), y)
        return {"all": y.reshape(5, 1).T, "none": jnp.zeros(2), "any": jnp.any(y > 1) & (x[0] > 0)}

    x = _positions(3)
    count = jnp.asarray(4)
    _same(map_columns(fn, x, count), jax.vmap(fn, (0, None))(x, count))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, _: jax.lax.while_loop(lambda v: v[0] < 10, lambda v: v + 1, jnp.abs(x)),
        lambda x, _: jnp.sort(x),
        lambda x, _: jax.lax.scan(lambda c, v: (c + v, c), 0.0, x)[1],
        lambda x, _: jnp.linalg.solve(jnp.eye(2) + jnp.outer(x, x), x),
    ],
    ids=["own number of rounds", "sort", "scan", "solve"],
)
def test_what_it_cannot_read_is_said(fn) -> None:
    with pytest.raises(UnreadableError):
        map_columns(fn, _positions(2), ())


def test_sampling_uses_columns_and_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws to rounding, by columns or by vmap; a density that sorts is sampled too."""
    used = []

    def spy(*arguments):
        used.append(True)
        return map_columns(*arguments)

    monkeypatch.setattr(program, "map_columns", spy)
    target = sk.targets.banana()

    def draws():
        run = sk.sample(target, sk.MALA(0.2), warmup=0, draws=5, chains=CHAINS, progress=False)
        return run["posterior"]["x"].values

    by_columns = draws()
    assert used
    monkeypatch.setattr(program, "FEW_COORDINATES", 0)
    jax.clear_caches()
    np.testing.assert_allclose(by_columns, draws(), rtol=1e-4, atol=1e-4)
    monkeypatch.undo()
    jax.clear_caches()
    odd = sk.from_log_density(lambda x: -jnp.sum(jnp.sort(x) ** 2) / 2, dim=2)
    run = sk.sample(odd, sk.MALA(0.5), warmup=0, draws=5, chains=CHAINS, progress=False)
    assert np.isfinite(run["posterior"]["x"].values).all()
