"""Sparse Gaussian graphs: optimality, an independent solver, the path, the choice, refusals."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from sklearn.base import clone

from samplekit.core.errors import EstimatorError
from samplekit.estimators import families
from samplekit.estimators import sparse_precision as sparse
from samplekit.estimators.moments import meat_block, normal_block

graph = families.gaussian_graphical_model


def chain(dim):
    return np.eye(dim) + 0.4 * (np.eye(dim, k=1) + np.eye(dim, k=-1))


def draw(seed, n, dim):
    return graph(dim).draw(seed, n, mean=np.arange(dim), precision=chain(dim))


def standardized(rows):
    return np.cov(rows.T, bias=True), rows.std(axis=0)


def test_optimality_along_the_path(seed):
    """KKT: G_ii = 0, G_ij = −λ sign K_ij on edges, |G_ij| ≤ λ elsewhere."""
    covariance = np.corrcoef(draw(seed, 300, 8).T)
    problem = sparse.Gaussian(covariance)
    start, counts = None, []
    for share in np.geomspace(1.0, 1e-3, 12):
        penalty = share * sparse.largest_penalty(problem)
        start = precision = sparse.minimize(problem, penalty, start)
        slope = (covariance @ precision + precision @ covariance) / 2 - np.eye(8)
        off = ~np.eye(8, dtype=bool)
        edge = off & (precision != 0)
        assert np.abs(np.diag(slope)).max() < 1e-8
        assert np.abs(slope + penalty * np.sign(precision))[edge].max(initial=0.0) < 1e-8
        assert np.abs(slope[off]).max() < penalty + 1e-8
        np.testing.assert_array_equal(precision, precision.T)
        counts.append(edge.sum() // 2)
    assert counts[0] == 0
    assert counts[-1] > 20  # of 28: the path goes all the way


def test_largest_penalty_is_the_largest(seed):
    rows = draw(seed, 200, 6)
    largest = sparse.largest_penalty(sparse.Gaussian(np.corrcoef(rows.T)))
    none = graph(penalty=1.0001 * largest).fit(rows)
    np.testing.assert_allclose(none.precision_, np.diag(1 / rows.var(axis=0)), rtol=1e-12)
    assert len(graph(penalty=0.999 * largest).fit(rows).edges_) == 1


@pytest.mark.parametrize("standardize", [True, False])
def test_an_independent_solver_agrees(seed, standardize):
    """L-BFGS-B on K = P − N with P, N ≥ 0, in which the penalty is smooth."""
    rows = draw(seed, 100, 4)
    penalty = 0.1
    covariance, unit = standardized(rows)
    unit = unit if standardize else np.ones(4)
    covariance = covariance / np.outer(unit, unit)
    i, j = np.triu_indices(4, 1)

    def unpack(x):
        precision = np.diag(x[:4])
        precision[i, j] = precision[j, i] = x[4:10] - x[10:]
        return precision

    def value(x):
        precision = unpack(x)
        slope = (covariance @ precision + precision @ covariance) / 2 - np.eye(4)
        loss = (
            np.trace(precision @ covariance @ precision) / 2
            - np.trace(precision)
            + 2 * penalty * x[4:].sum()
        )
        off = 2 * slope[i, j]
        return loss, np.concatenate([np.diag(slope), off + 2 * penalty, 2 * penalty - off])

    found = minimize(
        value,
        np.append(np.ones(4), np.zeros(12)),
        jac=True,
        bounds=[(None, None)] * 4 + [(0, None)] * 12,
        options={"ftol": 1e-16, "gtol": 1e-10, "maxiter": 10_000},
    )
    fitted = graph(penalty=penalty, standardize=standardize).fit(rows)
    expected = unpack(found.x) / np.outer(unit, unit)
    assert 0 < len(fitted.edges_) < 6
    np.testing.assert_allclose(fitted.precision_, expected, atol=1e-6)
    np.testing.assert_allclose(
        fitted.path_["score"][0], found.fun - 2 * penalty * found.x[4:].sum()
    )
    np.testing.assert_allclose(fitted.params_["mean"], rows.mean(axis=0), rtol=1e-10)


def test_without_a_penalty_it_is_the_closed_form(seed):
    rows = draw(seed, 500, 5)
    closed = families.gaussian(5).fit(rows)
    np.testing.assert_array_equal(graph(penalty=0).fit(rows).theta_, closed.theta_)
    np.testing.assert_array_equal(graph().fit(rows).standard_errors_, closed.standard_errors_)
    tiny = graph(penalty=1e-9).fit(rows)
    np.testing.assert_allclose(tiny.precision_, closed.params_["precision"], atol=1e-6)


def test_refit_is_the_maximum_likelihood_of_the_graph(seed):
    """W = K⁻¹ agrees with S on the edges and the diagonal; K is zero elsewhere."""
    covariance = np.corrcoef(draw(seed, 200, 7).T)
    support = chain(7) != 0
    support[0, 6] = support[6, 0] = True  # a loop, so that one sweep is not enough
    precision = sparse.refit(covariance, support)
    np.testing.assert_allclose(np.linalg.inv(precision)[support], covariance[support], atol=1e-9)
    assert np.all(precision[~support] == 0)
    np.testing.assert_allclose(
        sparse.refit(covariance, np.ones((7, 7), bool)), np.linalg.inv(covariance), rtol=1e-9
    )


@pytest.mark.statistical
def test_extended_bic_finds_the_chain(seed):
    rows = draw(seed, 1000, 20)
    frame = pd.DataFrame(rows * np.geomspace(1e-3, 1e3, 20), columns=[f"v{i}" for i in range(20)])
    fitted = graph(penalty="ebic").fit(frame)
    np.testing.assert_array_equal(fitted.support_, chain(20) != 0)
    path = fitted.path_
    best = int(np.argmin(path["ebic"]))
    assert path["edges"].tolist()[best] == 19
    assert path["edges"].tolist()[0] == 0
    assert np.all(np.diff(path["penalty"]) < 0)
    assert np.all(np.diff(path["score"]) < 0)
    assert fitted.penalty_ == path["penalty"].tolist()[best]
    # Partial correlations are all −0.4, in any unit; one of 1000 rows has standard error 0.03.
    assert np.abs(fitted.edges_["partial_correlation"] + 0.4).max() < 5 * 0.03
    assert set(fitted.edges_["first"]) <= set(frame.columns)


@pytest.mark.statistical
def test_fewer_rows_than_columns(seed):
    """S is singular: the enlarged diagonal keeps the fit finite, and chance stays chance."""
    rows = draw(seed, 40, 60)
    fitted = graph(penalty="ebic").fit(rows)
    assert np.linalg.eigvalsh(fitted.precision_)[0] > 0
    found = np.triu(fitted.support_, 1)
    # 1770 − 59 pairs have no edge.
    assert np.count_nonzero(found & (chain(60) == 0)) <= 5
    small = graph(penalty=1e-3).fit(rows)
    assert np.isfinite(small.precision_).all()


def rooted(seed, n, dim):
    """Rows of the exponential square-root family with a chain for a graph."""
    family = families.pairwise(0.5, 0.5, dim)
    return family.draw(seed, n, linear=np.full(dim, 0.5), precision=chain(dim))


def test_an_independent_solver_agrees_on_a_pairwise_family(seed):
    """As above, on ½θᵀΓθ − gᵀθ, in θ's own units."""
    rows, penalty = rooted(seed, 400, 3), 0.05
    fitted = families.pairwise(0.5, 0.5, penalty=penalty, standardize=False).fit(rows)
    gamma, g = (part / len(rows) for part in fitted._fitted.sums)
    pairs = np.array([4, 5, 7])  # of 3 linear ones, K₀₀, K₀₁, K₀₂, K₁₁, K₁₂, K₂₂
    assert [fitted.statistic_names_[i][-4:-1] for i in pairs] == ["0,1", "0,2", "1,2"]

    def value(x):
        theta = x[:9].copy()
        theta[pairs] -= x[9:]
        slope = gamma @ theta - g
        loss = theta @ (slope - g) / 2 + 2 * penalty * (x[pairs] + x[9:]).sum()
        first = slope.copy()
        first[pairs] += 2 * penalty
        return loss, np.append(first, 2 * penalty - slope[pairs])

    bounds = [(0, None) if i in pairs or i >= 9 else (None, None) for i in range(12)]
    options = {"ftol": 1e-16, "gtol": 1e-11, "maxiter": 20_000, "maxfun": 40_000}
    found = minimize(value, np.zeros(12), jac=True, bounds=bounds, options=options).x
    expected = found[:9].copy()
    expected[pairs] -= found[9:]
    assert 0 < len(fitted.edges_) < 3
    np.testing.assert_allclose(fitted.theta_, expected, atol=1e-5)
    assert fitted.path_.columns.tolist() == ["penalty", "edges", "score"]
    assert fitted.penalty_ == penalty


def test_both_ways_are_one(seed):
    """A weight of one sends a Gaussian the general way: the same K at the same penalty."""
    rows = draw(seed, 500, 4) - np.arange(4)
    short = graph(penalty=0.1, standardize=False).fit(rows)
    general = graph(penalty=0.1, standardize=False, weight=jnp.ones_like).fit(rows)
    assert 0 < len(short.edges_) < 6
    np.testing.assert_allclose(general.theta_, short.theta_, atol=1e-8)
    np.testing.assert_array_equal(general.support_, short.support_)
    assert general.path_["edges"].tolist() == short.path_["edges"].tolist()
    np.testing.assert_allclose(general.path_["score"], short.path_["score"], rtol=1e-8)


def test_a_vanishing_penalty_is_the_closed_form_on_the_orthant(seed):
    """Through the frame and back, zeros included."""
    rows = np.abs(draw(seed, 600, 4))
    closed = families.truncated_gaussian().fit(rows)
    tiny = families.truncated_gaussian(penalty=1e-10).fit(rows)
    np.testing.assert_allclose(tiny.theta_, closed.theta_, rtol=1e-5)
    assert closed.standard_errors_.shape == closed.theta_.shape
    large = families.truncated_gaussian(penalty=1e3).fit(rows)
    np.testing.assert_array_equal(large.support_, np.eye(4, dtype=bool))


@pytest.mark.statistical
def test_extended_bic_finds_the_chain_on_the_orthant(seed):
    """In any units of the columns; and no edge where there is none."""
    dim, names = 6, [f"v{i}" for i in range(6)]
    model = families.truncated_gaussian(penalty="ebic")
    rows = model.draw(seed, 3000, location=np.ones(dim), precision=chain(dim))
    found = model.fit(rows)
    np.testing.assert_array_equal(found.support_, chain(dim) != 0)
    best = int(np.argmin(found.path_["ebic"]))
    assert found.path_["edges"].tolist()[best] == dim - 1
    assert found.edges_.columns.tolist()[-1] == "strength"
    units = np.geomspace(1e-3, 1e3, dim)
    scaled = clone(model).fit(pd.DataFrame(rows * units, columns=names))
    np.testing.assert_allclose(scaled.precision_ * np.outer(units, units), found.precision_)
    assert set(scaled.edges_["first"]) <= set(names)
    alone = model.draw(seed, 3000, location=np.ones(dim), precision=np.eye(dim))
    np.testing.assert_array_equal(clone(model).fit(alone).support_, np.eye(dim, dtype=bool))
    rooted_chain = families.pairwise(0.5, 0.5, penalty="ebic").fit(rooted(seed, 6000, 4))
    np.testing.assert_array_equal(rooted_chain.support_, chain(4) != 0)


@pytest.mark.statistical
def test_the_charge_of_an_edge_is_what_chance_gains(seed):
    """Mean of 2n·(score without an edge − score with it) over data without it: df of the edge."""
    count, n = 2000, 400
    model = families.truncated_gaussian(2)._setup(2).model
    edge = np.array([False, False, False, True, False])

    @jax.jit
    @jax.vmap
    def sums(rows):
        ones = jnp.ones(n)
        gamma, g = normal_block(model, ones[:0], rows, ones)
        meat, _ = meat_block(model, jnp.linalg.solve(gamma, g), rows, ones)
        return gamma / n, g / n, meat

    with jax.enable_x64(True):
        data = np.abs(np.random.default_rng(seed).normal(size=(count, n, 2)))
        found = [np.asarray(part) for part in sums(jnp.asarray(data))]
    gains, charges = [], []
    for gamma, g, meat in zip(*found, strict=True):
        problem = sparse.System(gamma, g, edge, scaled=True)
        middle = meat / np.outer(problem.scale, problem.scale)
        (free, alone), (lower, whole) = (
            [
                sparse.score_bic(problem, support, middle, weight=n, charge=charge)[1]
                for charge in (0.0, 1.0)
            ]
            for support in (~edge, np.ones(5, bool))
        )
        gains.append(free - lower)
        charges.append((whole - lower) - (alone - free))
    error = np.std(gains) / np.sqrt(count)
    assert error < 0.05 * np.mean(charges)  # the test can see something
    # The charge itself has a bias of order 1/n, of some per cent at n = 400.
    assert abs(np.mean(gains) - np.mean(charges)) < 5 * error


def test_streams_and_weights_and_copies(seed):
    rows = draw(seed, 3000, 5)
    whole = graph(penalty=0.1).fit(rows)
    parts = graph(penalty=0.1).fit(iter(np.split(rows, 3)))
    np.testing.assert_allclose(parts.theta_, whole.theta_, rtol=1e-8, atol=1e-9)
    more = graph(penalty=0.1)
    for part in np.split(rows, 3):
        more.partial_fit(part)
    np.testing.assert_allclose(more.theta_, whole.theta_, rtol=1e-8, atol=1e-9)
    twice = graph(penalty=0.1).fit(rows, sample_weight=np.full(3000, 2.0))
    np.testing.assert_allclose(twice.theta_, whole.theta_, rtol=1e-8, atol=1e-9)
    copy = pickle.loads(pickle.dumps(whole))
    np.testing.assert_array_equal(copy.theta_, whole.theta_)
    pd.testing.assert_frame_equal(copy.path_, whole.path_)
    assert clone(whole).penalty == 0.1


def test_the_general_choice_takes_streams_and_makes_copies(seed):
    rows = rooted(seed, 3000, 3)
    make = families.pairwise(0.5, 0.5, penalty="ebic", errors="none")
    whole = clone(make).fit(rows)
    stream = clone(make).fit(iter(np.split(rows, 6)))
    np.testing.assert_allclose(stream.theta_, whole.theta_, rtol=1e-9, atol=1e-12)
    parts = clone(make).fit(rows[:2000]).partial_fit(rows[2000:])
    np.testing.assert_allclose(parts.theta_, whole.theta_, rtol=1e-9, atol=1e-12)
    other = families.pairwise(0.5, 0.5, penalty=0.1).fit(rows).set_params(penalty="ebic")
    with pytest.raises(EstimatorError, match="were not kept"):
        other.partial_fit(rows)
    copy = pickle.loads(pickle.dumps(whole))
    np.testing.assert_array_equal(copy.theta_, whole.theta_)
    with pytest.raises(EstimatorError, match="no standard errors after a penalty"):
        _ = copy.standard_errors_


def test_refusals(seed):
    rows = draw(seed, 100, 3)
    with pytest.raises(EstimatorError, match="no standard errors after a penalty"):
        _ = graph(penalty=0.1).fit(rows).standard_errors_
    with pytest.raises(ValueError, match="penalty"):
        graph(penalty=-1.0).fit(rows)
    with pytest.raises(ValueError, match="penalty"):
        graph(penalty="aic").fit(rows)
    rows[:, 1] = 4.0
    with pytest.raises(EstimatorError, match="Columns 1 of X are constant"):
        graph(penalty=0.1).fit(rows)
