"""The Fisher score of a machine: closed forms against autodiff, and wrong forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplekit.estimators import rbm_fisher
from samplekit.estimators.rbm_fisher import (
    direct,
    direct_of_unit,
    fisher_gradient,
    gram,
    gram_of_unit,
)
from samplekit.targets.boltzmann import GaussBernoulli

SAME = 1e-10
NAMES = ("weights", "hidden_bias", "visible_bias", "log_variance")
FORMS = {
    "direct": direct,
    "gram": gram,
    "chosen": fisher_gradient,
    "direct of unit": direct_of_unit,
    "gram of unit": gram_of_unit,
    "chosen of unit": lambda m, v: fisher_gradient(m, v, unit=True),
}


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64():
        yield


def machine_and_rows(hidden, visible, *, unit):
    random = np.random.default_rng(hidden)
    log_variance = np.zeros(visible) if unit else random.normal(scale=0.5, size=visible)
    parts = (random.normal(size=(hidden, visible)), random.normal(size=hidden),
             random.normal(size=visible), log_variance)  # fmt: skip
    machine = GaussBernoulli.of(*(jnp.asarray(part) for part in parts))
    return machine, jnp.asarray(random.normal(size=(20, visible)))


def by_autodiff(machine, rows):
    """Return the mean of ½‖s‖² + tr ∇s and its gradient, with nothing by hand but the density."""

    def loss(machine):
        def one(v):
            score = jax.grad(machine.log_density)
            return score(v) @ score(v) / 2 + jnp.trace(jax.jacfwd(score)(v))

        return jnp.mean(jax.vmap(one)(rows))

    return jax.jit(jax.value_and_grad(loss))(machine)


def compare(found, expected, *, unit):
    np.testing.assert_allclose(found.loss, expected[0], rtol=SAME)
    for name in NAMES[: 3 if unit else 4]:
        got, exact = getattr(found.gradient, name), getattr(expected[1], name)
        np.testing.assert_allclose(got, exact, rtol=SAME, atol=SAME, err_msg=name)
    if unit:
        np.testing.assert_array_equal(found.gradient.log_variance, 0.0)  # it stays one


@pytest.mark.parametrize(("hidden", "visible"), [(3, 7), (9, 4), (1, 1)])
@pytest.mark.parametrize("unit", [True, False])
def test_every_form_is_the_autodiff_of_the_definition(hidden, visible, unit):
    machine, rows = machine_and_rows(hidden, visible, unit=unit)
    expected = by_autodiff(machine, rows)
    for name, form in FORMS.items():
        if unit or "unit" not in name:
            compare(form(machine, rows), expected, unit="unit" in name)


def test_the_form_is_chosen_by_shape(monkeypatch):
    called = []
    for name in ("direct", "direct_of_unit", "gram", "gram_of_unit"):
        true = getattr(rbm_fisher, name)

        def spy(*args, name=name, true=true, **settings):
            called.append(name)
            return true(*args, **settings)

        monkeypatch.setattr(rbm_fisher, name, spy)
    few, many = (machine_and_rows(*shape, unit=True) for shape in ((3, 7), (9, 4)))
    for pair in (few, many):
        for unit in (True, False):
            fisher_gradient(*pair, unit=unit)
    assert called == ["gram_of_unit", "gram", "direct_of_unit", "direct"]


def test_the_formulas_of_the_notes_are_not_it():
    """FORMULAS.md §3a and §3e: the sign of V, and ‖diag(ρ')W‖² for the trace."""
    machine, rows = machine_and_rows(3, 7, unit=True)
    weights, b, c = machine.weights, machine.hidden_bias, machine.visible_bias
    rho = jax.nn.sigmoid(rows @ weights.T + b[None])
    slope, squares = rho * (1 - rho), jnp.sum(weights**2, axis=1)

    def loss(*, sign, power):
        residual = rho @ weights + c[None] + sign * rows
        parts = jnp.sum(residual**2, axis=1) / 2 + slope**power @ squares - rows.shape[1]
        return float(jnp.mean(parts))

    right = float(by_autodiff(machine, rows)[0])
    np.testing.assert_allclose(loss(sign=-1, power=1), right, rtol=SAME)
    assert abs(loss(sign=1, power=1) - right) > 1
    assert abs(loss(sign=-1, power=2) - right) > 1


@pytest.mark.parametrize("shape", [(30, 200), (64, 20)])
def test_single_precision_is_close(shape):
    machine, rows = machine_and_rows(*shape, unit=True)
    exact = fisher_gradient(machine, rows, unit=True)
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (machine, rows))
    found = fisher_gradient(*single, unit=True)
    # Sums of some thousand numbers, each to 6e-8, against the largest entry.
    for got, right in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        gap = np.abs(np.asarray(got, np.float64) - np.asarray(right)).max()
        assert gap <= 1e-4 * max(1.0, np.abs(right).max())


def test_a_planted_machine_is_where_the_score_is_least():
    """The gradient at the truth is zero but for noise whose size is known."""
    machine, _ = machine_and_rows(3, 5, unit=False)
    key = jax.random.key(0)

    def sweep(step, rows):
        return jax.vmap(machine.sweep)(machine.noise(jax.random.fold_in(key, step), 20_000), rows)

    rows = jax.jit(lambda: jax.lax.fori_loop(0, 100, sweep, jnp.zeros((20_000, 5))))()
    each = jax.jit(jax.vmap(lambda v: fisher_gradient(machine, v[None]).gradient))(rows)
    for name in NAMES:
        draws = getattr(each, name)
        error = jnp.std(draws, axis=0) / np.sqrt(len(rows))
        z = jnp.mean(draws, axis=0) / error
        assert jnp.abs(z).max() < 5.5, name  # chance 4e-8 a number
