"""Densities with tall matrices: the same values and gradients, with the transposes in memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import samplekit as sk
from samplekit.sampling import tall, view

RANDOM = np.random.default_rng(0)
ROWS, ANSWERS = RANDOM.normal(size=(200, 3)), RANDOM.integers(0, 2, 200).astype(float)
SQUARE = RANDOM.normal(size=(3, 3))


def likelihood(logits):
    return jnp.sum(ANSWERS * logits - jnp.logaddexp(0.0, logits))  # a custom_jvp_call


def nested(x):
    return likelihood(jax.jit(lambda x: jnp.asarray(ROWS) @ x)(x))


def looped(x):
    steps = jax.lax.scan(lambda c, _: (c + jnp.sum(x), None), 0.0, None, length=3)[0]
    return likelihood(jnp.asarray(ROWS) @ x) + steps


def branched(x):
    return jax.lax.cond(x[0] > 0, lambda x: likelihood(jnp.asarray(ROWS) @ x), jnp.sum, x)


# How a density may be written, and whether a matrix in it is turned.
DENSITIES = {
    "matmul": (lambda x: likelihood(jnp.asarray(ROWS) @ x), True),
    "NumPy's matrix": (lambda x: likelihood(jnp.dot(ROWS, x)), True),
    "vector first": (lambda x: likelihood(jnp.einsum("j,ij->i", x, ROWS)), True),
    "twice": (lambda x: likelihood(ROWS @ x + jnp.asarray(ROWS) @ (x**2)), True),
    "in a jitted function": (nested, True),
    "beside a loop": (looped, True),
    "in a branch": (branched, False),
    "square": (lambda x: -jnp.sum((jnp.asarray(SQUARE) @ x) ** 2), False),
    "wide": (lambda x: -jnp.sum((jnp.asarray(ROWS.T) @ jnp.tile(x[:1], 200)) ** 2), False),
    "with a matrix": (lambda x: jnp.sum(jnp.asarray(ROWS) @ jnp.outer(x, x)), False),
}


def products(fn, x):
    """Return the axes of the matrices that products with vectors in a traced function sum over."""
    found = []

    def visit(jaxpr):
        for e in jaxpr.eqns:
            if e.primitive.name == "dot_general":
                (left, right), _ = e.params["dimension_numbers"]
                shapes = [v.aval.shape for v in e.invars]
                side = int(len(shapes[1]) == 2)
                found.append((shapes[side], tuple((left, right)[side])))
            for value in e.params.values():
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    visit(inner)

    visit(jax.make_jaxpr(fn)(x).jaxpr)
    return found


@pytest.mark.parametrize("name", DENSITIES)
def test_values_and_gradients(name):
    fn, turned = DENSITIES[name]
    with jax.enable_x64(True):
        x = jnp.asarray([0.3, -0.2, 0.5])
        traced = jax.make_jaxpr(fn)(x).jaxpr
        assert tall.has_tall_product(traced) is turned
        columns = functools.partial(tall.by_columns, fn)
        both = jnp.stack([x, 2 * x])
        for change, at in (
            (lambda f: f, x),
            (jax.grad, x),
            (jax.hessian, x),
            (lambda f: jax.jit(jax.vmap(f)), both),
        ):
            ours, theirs = change(columns)(at), change(fn)(at)
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
        if turned:
            assert all(shape == (3, 200) for shape, _ in products(columns, x))


def test_a_matrix_that_is_an_argument_stays():
    """Its transpose would be made in every step."""
    fn = jax.jit(lambda rows, x: tall.by_columns(lambda x: jnp.sum(rows @ x), x))
    rows, x = jnp.asarray(ROWS, jnp.float32), jnp.ones(3)
    np.testing.assert_allclose(fn(rows, x), jnp.sum(rows @ x), rtol=1e-5)
    assert products(lambda x: fn(rows, x), x) == [((200, 3), (1,))]


def test_a_regression_is_sampled_by_columns(monkeypatch):
    """A NumPyro model too; draws differ by rounding only."""
    turned, draws = [], []
    plain = tall.by_columns
    monkeypatch.setattr(view, "by_columns", lambda *args: turned.append(1) or plain(*args))
    for least in (200, 10**9):
        monkeypatch.setattr(tall, "LEAST", least)
        turned.clear()

        def model(rows, answers):  # anew, or what is known of it would be remembered
            weights = numpyro.sample("weights", dist.Normal(0, 2).expand([3]).to_event(1))
            numpyro.sample("answers", dist.Bernoulli(logits=rows @ weights), obs=answers)

        target = sk.from_numpyro(model, ROWS.astype(np.float32), ANSWERS)
        run = sk.sample(
            target, sk.NUTS(0.1, metric=None), draws=5, warmup=0, chains=2, seed=1, progress=False
        )
        draws.append(run["posterior"]["weights"].values)
        assert bool(turned) is (least == 200)
    np.testing.assert_allclose(*draws, rtol=1e-3, atol=1e-4)
