"""Discrete fields against enumeration: densities, odds, colors, noise, the best state, images."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

import samplekit as sk
from samplekit.core.errors import TargetError
from samplekit.targets.binary import logistic
from samplekit.targets.fields import _last_bits
from samplekit.targets.pairwise import Graph

EPS = np.finfo(np.float32).eps


def scattered(shape, scale=0.5, seed=0):
    return scale * np.random.default_rng(seed).standard_normal(shape)


def dense(sites, values, seed=0):
    edges = list(itertools.combinations(range(sites), 2))
    unary, weights = scattered(sites, 0.5, seed), scattered(len(edges), 0.4, seed + 1)
    return sk.targets.pairwise_field(unary, edges, weights, values=values)


FIELDS = {
    "torus 3×3": lambda: sk.targets.ising((3, 3), 0.25, 0.2),
    "torus 4×4, antiferromagnet": lambda: sk.targets.ising((4, 4), -0.3, 0.15),
    "torus 4×4, a field each": lambda: sk.targets.ising((4, 4), 0.3, scattered((4, 4))),
    "torus 3×4, antiferromagnet, a field each": lambda: sk.targets.ising(
        (3, 4), -0.3, scattered((3, 4))
    ),
    "open 3×4": lambda: sk.targets.ising((3, 4), 0.4, -0.2, periodic=False),
    "open 2×5, a field each": lambda: sk.targets.ising(
        (2, 5), 0.4, scattered((2, 5)), periodic=False
    ),
    "ring of 7": lambda: sk.targets.ising(7, 0.5, 0.3),
    "open cube": lambda: sk.targets.ising((2, 3, 2), 0.3, 0.1, periodic=False),
    "no coupling": lambda: sk.targets.ising((3, 3), 0.0, 0.4),
    "no coupling, a field each": lambda: sk.targets.ising((3, 3), 0.0, scattered((3, 3))),
    "complete graph, 0 and 1": lambda: dense(7, (0, 1)),
    "complete graph, −1 and 1": lambda: dense(7, (-1, 1), seed=2),
    "star, shaped": lambda: sk.targets.pairwise_field(
        scattered((2, 4)), [(0, i) for i in range(1, 8)], scattered(7)
    ),
    "no edges": lambda: sk.targets.pairwise_field(scattered(4), [], values=(0, 1)),
    "an edge twice": lambda: sk.targets.pairwise_field(np.zeros(3), [(0, 1), (1, 0)], [0.2, 0.3]),
}
every_field = pytest.mark.parametrize("name", FIELDS)


@every_field
def test_log_density_is_that_of_the_enumeration(name):
    field = FIELDS[name]()
    exact = field.exact()
    states = exact.states.reshape(-1, *field.shape)
    got = np.asarray(jax.jit(jax.vmap(field.log_density))(states))
    want = np.log(exact.probabilities) + exact.log_normalizer
    terms = 4 * field.space.size + len(getattr(field, "weights", ()))
    assert np.abs(got - want).max() <= terms * EPS * np.abs(want).max()
    assert abs(exact.probabilities.sum() - 1) < 1e-12


@every_field
def test_log_odds_are_differences_of_the_log_density(name, key):
    field = FIELDS[name]()
    x = np.asarray(field.draw(key, 1)[0])
    odds = np.asarray(field.log_odds(x))
    assert odds.shape == x.shape
    both = np.tile(x.ravel(), (2, x.size, 1))
    sites = np.arange(x.size)
    both[0, sites, sites], both[1, sites, sites] = field.values
    low, high = np.asarray(
        jax.jit(jax.vmap(jax.vmap(field.log_density)))(both.reshape(2, x.size, *x.shape))
    )
    assert odds.ravel() == pytest.approx(high - low, abs=1e-5)


@every_field
def test_neighbors_have_different_colors(name):
    field = FIELDS[name]()
    colors = field.colors.ravel()
    assert field.colors.shape == field.shape
    _, weights = field._quadratic()
    near = np.argwhere(weights)
    assert not np.any(colors[near[:, 0]] == colors[near[:, 1]])
    assert set(colors) == set(range(colors.max() + 1))


def test_even_tori_take_two_colors_and_odd_ones_three():
    count = lambda field: len(np.unique(field.colors))  # noqa: E731
    assert count(sk.targets.ising((6, 4), 1.0)) == 2
    assert count(sk.targets.ising((6, 5), 1.0)) == 3
    assert count(sk.targets.ising((6, 5), 1.0, periodic=False)) == 2
    assert count(sk.targets.ising((3, 5, 4), 1.0)) == 3
    tree = [(i, (i - 1) // 2) for i in range(1, 31)]
    assert count(sk.targets.pairwise_field(np.zeros(31), tree)) == 2


def test_a_graph_is_compared_by_content():
    a, b, c = (Graph.of(3, np.array([[0, 1], [1, i]])) for i in (2, 2, 0))
    assert a == b
    assert hash(a) == hash(b)
    assert a != c


# One of each kind of sweep; `make test-slow` takes all.
QUICK = {
    "torus 3×3",
    "torus 4×4, a field each",
    "open 3×4",
    "complete graph, 0 and 1",
    "star, shaped",
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in FIELDS]
)
def test_one_sweep_keeps_the_law_of_exact_draws(name, key):
    """Every probability of a state after a sweep, which is sharper than moments."""
    field = FIELDS[name]()
    n = 50_000
    draw, walk = jax.random.split(key)
    sweep = jax.jit(lambda f, k, x: jax.vmap(f.gibbs)(jax.random.split(k, n), x))
    x = np.asarray(sweep(field, walk, field.draw(draw, n)))
    exact = field.exact()
    code = (x.reshape(n, -1) == field.values[1]) @ (2 ** np.arange(field.space.size)[::-1])
    counts = np.bincount(code, minlength=len(exact.states))
    # Rare states are pooled, so that every cell expects 10 draws.
    rare = n * exact.probabilities < 10
    seen = np.append(counts[~rare], counts[rare].sum())
    wanted = n * np.append(exact.probabilities[~rare], exact.probabilities[rare].sum())
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    freedom = len(wanted) - 1
    # Wilson and Hilferty's cube root is normal; 5.2 standard deviations: one in 10⁷.
    cube = (((seen - wanted) ** 2 / wanted).sum() / freedom) ** (1 / 3)
    assert cube < 1 - 2 / (9 * freedom) + 5.2 * np.sqrt(2 / (9 * freedom))


def test_probabilities_are_exact_to_32_bits():
    odds = np.linspace(-25, 25, 2001).astype(np.float32)
    limits = np.asarray(_last_bits(jnp.asarray(odds)), np.float64)
    for sign in (1, -1):  # the chance of yes, and of no, each to its own precision
        got = (limits + 1) / 2**32 if sign > 0 else 1 - (limits + 1) / 2**32
        p = 1 / (1 + np.exp(-sign * odds.astype(np.float64)))
        assert np.all(np.abs(got - p) <= 1.01 * 2**-32 + 8 * EPS * np.minimum(p, 1 - p))


def test_logistic_noise_is_the_quantile_of_its_bits():
    steps = np.concatenate([np.arange(2**12), np.linspace(2**12, 2**31 - 1, 5000)])
    words = np.concatenate([steps, 2**31 + steps]).astype(np.uint32)
    got = np.asarray(logistic(jnp.asarray(words), jnp.float32), np.float64)
    tail = ((words & (2**31 - 1)) + 0.5) / 2**32
    want = np.log(tail) - np.log1p(-tail)
    want = np.where(words >> 31, -want, want)
    assert np.abs(got - want).max() <= 8 * EPS * np.abs(want).max()
    assert got[0] == -got[len(steps)] == np.log(0.5 / 2**32).astype(np.float32)


def test_colder_is_the_power_of_the_density(key):
    for name in ("torus 4×4, a field each", "complete graph, 0 and 1"):
        field = FIELDS[name]()
        x = field.draw(key, 1)[0]
        assert float(field.at(1.7).log_density(x)) == pytest.approx(
            1.7 * float(field.log_density(x)), rel=1e-5
        )


def test_another_coupling_is_the_same_program():
    traces = []

    @jax.jit
    def sweep(field, key, x):
        traces.append(field)
        return field.gibbs(key, x)

    for coupling in (0.1, 0.2):
        field = sk.targets.ising((4, 4), coupling)
        sweep(field, jax.random.key(0), np.ones((4, 4), np.int8))
        field = sk.targets.pairwise_field(np.zeros(3), [(0, 1), (1, 2)], coupling)
        sweep(field, jax.random.key(0), np.ones(3, np.int8))
    assert len(traces) == 2


def test_the_best_state_of_small_fields_is_found():
    for name in ("torus 4×4, antiferromagnet", "open 2×5, a field each", "complete graph, 0 and 1"):
        field = FIELDS[name]()
        exact = field.exact()
        best = np.log(exact.probabilities.max()) + exact.log_normalizer
        found = field.map(seed=1, sweeps=200)
        assert found.log_density == pytest.approx(best, abs=1e-4)
        assert float(field.log_density(found.x)) == pytest.approx(found.log_density, rel=1e-6)
        assert found.x.dtype == np.int8


def minimum_cut(field):
    """Return the best log density of an attractive field by a maximum flow, exact to 1e-6."""
    unary, weights = field._quadratic()
    n, unit = len(unary), 1e6
    rows, columns = np.nonzero(np.triu(weights))
    near = np.round(2 * unit * weights[rows, columns]).astype(np.int32)
    pull = np.round(2 * unit * np.abs(unary)).astype(np.int32)
    up, down = np.flatnonzero(unary > 0), np.flatnonzero(unary < 0)
    starts = np.concatenate([rows, columns, np.full(len(up), n), down])
    ends = np.concatenate([columns, rows, up, np.full(len(down), n + 1)])
    capacity = np.concatenate([near, near, pull[up], pull[down]])
    network = csr_array((capacity, (starts, ends)), shape=(n + 2, n + 2))
    cut = maximum_flow(network, n, n + 1).flow_value / unit
    return np.abs(unary).sum() + weights[rows, columns].sum() - cut


def test_annealing_reaches_the_minimum_cut_of_an_image(seed):
    rng = np.random.default_rng(seed)
    clean = np.add.outer((np.arange(16) - 7.5) ** 2, (np.arange(16) - 7.5) ** 2) < 30
    noisy = clean ^ (rng.random(clean.shape) < 0.2)
    field = sk.targets.denoising_field(noisy, coupling=0.7, flip=0.2)
    found = field.map(sweeps=1000)
    best = minimum_cut(field)
    assert found.log_density == pytest.approx(best, abs=1e-3)
    assert np.mean((found.x > 0) != clean) < np.mean(noisy != clean)


def test_the_posterior_of_an_image_is_prior_times_likelihood():
    noisy, coupling, flip = np.array([[1, 0, 0], [1, 1, 0]]), 0.6, 0.15
    field = sk.targets.denoising_field(noisy, coupling, flip)
    exact, prior = field.exact(), sk.targets.ising((2, 3), coupling, periodic=False)
    same = exact.states == (2 * noisy - 1).ravel()
    logs = np.where(same, np.log(1 - flip), np.log(flip)).sum(axis=1)
    logs += np.array([float(prior.log_density(s.reshape(2, 3))) for s in exact.states])
    p = np.exp(logs - logs.max())
    assert np.abs(p / p.sum() - exact.probabilities).max() < 1e-6
    for image in (noisy.astype(bool), 255 * noisy, 2 * noisy - 1):
        assert np.array_equal(sk.targets.denoising_field(image, 0.6, 0.15).field, field.field)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sk.targets.ising((2, 4), 1.0), "periodic axis of length 2"),
        (lambda: sk.targets.ising((4, 0), 1.0), "not a positive integer"),
        (lambda: sk.targets.ising((4, 4), [1.0, 2.0]), "one number is needed.*pairwise_field"),
        (lambda: sk.targets.ising((4, 4), np.nan), "not finite"),
        (lambda: sk.targets.ising((4, 4), 1.0, np.ones(4)), r"field has shape \(4,\)"),
        (lambda: sk.targets.pairwise_field([0.0, 0.0], [(0, 2)]), "sites 0 to 2.*unary has 2"),
        (lambda: sk.targets.pairwise_field([0.0, 0.0], [(0, 0)]), "to itself"),
        (lambda: sk.targets.pairwise_field([0.0, 0.0], [0.5, 0.5]), "pairs of site numbers"),
        (lambda: sk.targets.pairwise_field([0.0, 0.0], [(0, 1)], [1, 2]), "for 1 edges"),
        (
            lambda: sk.targets.pairwise_field([0.0], [], values=(0, 2)),
            r"give \(-1, 1\) or \(0, 1\)",
        ),
        (lambda: sk.targets.denoising_field(np.arange(4.0), 1.0, 0.1), "4 values.*Threshold"),
        (lambda: sk.targets.denoising_field(np.eye(3), 1.0, 0.0), "flip=0.0"),
        (lambda: sk.targets.ising((5, 5), 1.0).exact(), "25 sites.*most: 20"),
        (lambda: sk.targets.ising((3, 3), 1.0).map(sweeps=0), "sweeps=0"),
    ],
)
def test_bad_input_is_refused_with_a_reason(make, words):
    with pytest.raises(TargetError, match=words):
        make()
