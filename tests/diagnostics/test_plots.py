"""The pictures show the numbers they claim to show, and survive every sick run."""

import io
import warnings

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from matplotlib import pyplot as plt
from matplotlib.collections import QuadMesh
from matplotlib.contour import QuadContourSet
from matplotlib.patches import StepPatch
from matplotlib.quiver import Quiver
from numpyro.distributions import constraints
from scipy import stats

import samplekit as sk
from samplekit.core.errors import SettingsError, TargetError
from samplekit.diagnostics import plot_panels
from samplekit.diagnostics.landscape import survey
from samplekit.diagnostics.plot_mixing import plot_mixing
from samplekit.diagnostics.plot_panels import Chains, Scalar
from samplekit.diagnostics.plot_style import SHARES, Picture, mass_levels
from samplekit.diagnostics.plot_target import plot_target
from samplekit.targets.space import make_space


@pytest.fixture(scope="module")
def run():
    target = sk.targets.gaussian(2)
    return sk.sample(target, sk.NUTS(), draws=200, warmup=200, seed=1, progress=False)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def drawn(figure) -> bytes:
    """Render a figure: some mistakes show only then, and warnings are errors."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=40)
    return buffer.getvalue()


def parts(ax, kind):
    return [child for child in ax.get_children() if isinstance(child, kind)]


def texts(figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(mpl.text.Text))


# A figure of its own ----------------------------------------------------------------------------


def test_figure_stands_alone(run) -> None:
    before = dict(mpl.rcParams)
    for figure in (plot_mixing(run, worst=1), plot_target(sk.targets.gaussian(2), run)):
        assert figure._repr_png_().startswith(b"\x89PNG")
    assert plt.get_fignums() == []
    assert dict(mpl.rcParams) == before


def test_a_users_style_does_not_spoil_it(run) -> None:
    with plt.style.context("dark_background"):
        figure = plot_mixing(run)
    assert figure.get_facecolor() == (1, 1, 1, 1)


# plot_target: one dimension -----------------------------------------------------------------------


def density_line(figure) -> tuple[np.ndarray, np.ndarray]:
    x, y = figure.axes[0].lines[0].get_data()
    return np.asarray(x), np.asarray(y)


EXACT = {
    "mixture": (
        sk.targets.mixture([0.7, 0.3], [[-2.0], [5.0]], 1.0),
        lambda x: 0.7 * stats.norm.pdf(x, -2) + 0.3 * stats.norm.pdf(x, 5),
    ),
    "cauchy": (sk.targets.student_t(1, 1.0), stats.cauchy.pdf),
    "score": (sk.from_score(lambda x: (3 - x) / 4, dim=1), stats.norm(3, 2).pdf),
    "exponential": (
        sk.from_log_density(lambda t: -2 * t, like=1.0, support=constraints.positive),
        stats.expon(scale=0.5).pdf,
    ),
    "beta": (
        sk.from_log_density(
            lambda p: 2 * jnp.log(p) + jnp.log1p(-p), like=0.5, support=constraints.unit_interval
        ),
        stats.beta(3, 2).pdf,
    ),
    "narrow": (
        sk.from_energy(lambda x: (((x - 700) / 0.1) ** 2).sum() / 2, 1),
        stats.norm(700, 0.1).pdf,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_density_is_normalized_over_constrained_values(name: str) -> None:
    target, exact = EXACT[name]
    figure = plot_target(target)
    x, y = density_line(figure)
    # Positions are float32: at 700 a step of 6e-5 is a slope's worth of 6e-5·3/0.1² = 2 % at 3σ.
    tolerance = 2e-2 if name == "narrow" else 2e-3
    np.testing.assert_allclose(y, exact(x), atol=tolerance * exact(x).max())
    low, high = figure.axes[0].get_xlim()
    inside = (low <= x) & (x <= high)
    assert 0.97 < np.trapezoid(y[inside], x[inside]) < 1.001


def test_score_curve_is_the_gradient_of_the_density_shown() -> None:
    target, _ = EXACT["exponential"]
    lower = plot_target(target).axes[1]
    np.testing.assert_allclose(lower.lines[1].get_ydata(), -2, atol=1e-3)
    target, _ = EXACT["mixture"]
    figure = plot_target(target)
    x, y = density_line(figure)
    score = np.asarray(figure.axes[1].lines[1].get_ydata())
    middle = slice(10, -10)
    slope = np.gradient(np.log(y), x)
    np.testing.assert_allclose(score[middle], slope[middle], atol=2e-2)


def test_histogram_counts_draws_out_of_view() -> None:
    x = noise(4, 500)
    x[:, :50] = 100
    figure = plot_target(sk.targets.gaussian(1), {"x": x[..., None]})
    (patch,) = parts(figure.axes[0], StepPatch)
    height, edges, _ = patch.get_data()
    inside = (x >= edges[0]) & (x <= edges[-1])
    assert np.sum(height * np.diff(edges)) == pytest.approx(inside.mean())
    counts, _ = np.histogram(x, edges)
    np.testing.assert_allclose(height, counts / x.size / np.diff(edges))
    assert f"{(~inside).sum():,} out of view" in texts(figure)


def test_view_shows_the_mode_that_the_run_missed() -> None:
    target = sk.from_log_density(lambda x: jnp.logaddexp(-((x[0] - 3) ** 2), -((x[0] + 3) ** 2)), 1)
    figure = plot_target(target, {"x": 3 + noise(4, 100, 1)})
    low, high = figure.axes[0].get_xlim()
    assert low < -4
    assert high > 4


# plot_target: two dimensions ----------------------------------------------------------------------


def test_contours_hold_their_share_of_the_mass() -> None:
    land = survey(sk.targets.gaussian(2))
    levels = mass_levels(land.density, land.mass)
    # Of a Gaussian in the plane p/p(0) ≥ l holds 1 − l; the view itself holds a little less.
    held = 1 - levels / land.density.max()
    np.testing.assert_allclose(held, sorted(SHARES, reverse=True), atol=0.01)
    assert np.sum(land.mass) == pytest.approx(1)
    figure = plot_target(sk.targets.gaussian(2))
    filled, lines = parts(figure.axes[0], QuadContourSet)
    np.testing.assert_allclose(lines.levels, levels)
    np.testing.assert_allclose(filled.levels[:-1], levels)


def test_contours_on_a_simplex_know_the_jacobian() -> None:
    """Exact draws fall within the shades as often as the shades say."""
    weights = np.array([2.0, 3.0, 4.0])
    target = sk.from_log_density(
        lambda p: (jnp.asarray(weights - 1, p.dtype) * jnp.log(p)).sum(),
        like=jnp.ones(3) / 3,
        support=constraints.simplex,
        name="p",
    )
    land = survey(target)
    assert land.labels == ("p[0]", "p[1]")
    exact = stats.dirichlet(weights)
    at = land.values.reshape(-1, 2).clip(1e-6, 1)
    at = np.column_stack([at, (1 - at.sum(1)).clip(1e-6)])
    at /= at.sum(1, keepdims=True)
    # The grid holds 99 % of the mass or so, over which the density was normalized.
    np.testing.assert_allclose(
        land.density.ravel(), exact.pdf(at.T), atol=0.02 * land.density.max()
    )
    draws = exact.rvs(20_000, random_state=1)
    inside = exact.pdf(draws.T)[:, None] >= mass_levels(land.density, land.mass)
    np.testing.assert_allclose(inside.mean(0), sorted(SHARES, reverse=True), atol=0.015)


def test_arrows_point_up_the_density() -> None:
    figure = plot_target(sk.targets.gaussian(2))
    (arrows,) = parts(figure.axes[0], Quiver)
    x, move = arrows.XY, np.column_stack([arrows.U, arrows.V])
    assert len(x) > 200
    across = x[:, 0] * move[:, 1] - x[:, 1] * move[:, 0]
    np.testing.assert_allclose(across, 0, atol=1e-5)
    assert ((x * move).sum(1) <= 0).all()


def test_a_score_alone_has_arrows_alone() -> None:
    turning = sk.from_score(lambda x: jnp.array([-x[0] + x[1], -x[1] - x[0]]), dim=2)
    figure = plot_target(turning)
    assert parts(figure.axes[0], QuadContourSet) == []
    assert len(parts(figure.axes[0], Quiver)) == 1
    assert np.abs(figure.axes[0].get_xlim()).max() < 10  # found without a density
    drawn(figure)


def test_a_density_without_gradient_has_no_arrows() -> None:
    def log_density(x):
        return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] - x @ x), (0, 0.0))[
            1
        ]

    figure = plot_target(sk.from_log_density(log_density, 2))
    assert parts(figure.axes[0], Quiver) == []
    assert len(parts(figure.axes[0], QuadContourSet)) == 2


def test_numpyro_model_of_two_scalars() -> None:
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(5.0))
        numpyro.deterministic("ratio", sigma / mu)
        numpyro.sample("y", dist.Normal(mu, sigma).expand([len(y)]), obs=y)

    y = np.array([1.2, 0.4, 2.2, 1.9, -0.3, 1.1, 0.7, 1.6])
    target = sk.from_numpyro(model, y)
    values = {"mu": 1 + 0.1 * noise(2, 50), "sigma": np.exp(0.1 * noise(2, 50, seed=1))}
    values["ratio"] = values["sigma"] / values["mu"]
    figure = plot_target(target, values)
    left, right = figure.axes
    assert (left.get_xlabel(), left.get_ylabel()) == ("mu", "sigma")
    shown = np.column_stack(right.lines[0].get_data())
    np.testing.assert_allclose(
        shown, np.column_stack([values["mu"].ravel(), values["sigma"].ravel()])
    )
    land = survey(target)
    mu, sigma = land.values[..., 0], land.values[..., 1]
    exact = stats.norm.logpdf(mu, 0, 5) + stats.halfnorm.logpdf(sigma, scale=5)
    exact += stats.norm.logpdf(y[:, None, None], mu, sigma).sum(0)
    likely = land.density > 1e-3 * land.density.max()
    gap = (np.log(np.where(likely, land.density, 1)) - exact)[likely]
    np.testing.assert_allclose(gap - gap.mean(), 0, atol=2e-3)


def test_bounds_are_in_constrained_values() -> None:
    target, exact = EXACT["exponential"]
    figure = plot_target(target, bounds=(0, 2))
    assert figure.axes[0].get_xlim() == (0, 2)
    x, y = density_line(figure)
    np.testing.assert_allclose(y, exact(x), atol=5e-3)
    figure = plot_target(sk.targets.banana(), bounds=[(-1, 1), (0, 3)])
    assert (figure.axes[0].get_xlim(), figure.axes[0].get_ylim()) == ((-1, 1), (0, 3))


class Own:
    """A target that says nothing of its space."""

    def log_density(self, x):
        return -(x**2).sum() / 2


def test_a_target_of_ones_own_needs_a_run_or_bounds() -> None:
    assert len(plot_target(Own(), bounds=[(-2, 2), (-2, 2)]).axes) == 1
    assert len(plot_target(Own(), {"x": noise(2, 50, 2)}).axes) == 2
    with pytest.raises(TargetError, match="bounds="):
        plot_target(Own())


def test_sick_draws_are_counted_not_drawn() -> None:
    x = noise(4, 100, 2)
    x[0, :7] = np.nan
    x[1, :5] = np.inf
    figure = plot_target(sk.targets.gaussian(2), {"x": x})
    assert "388 draws" in texts(figure)
    assert "12 not finite" in texts(figure)
    plot_target(sk.targets.gaussian(2), {"x": np.full((2, 9, 2), np.nan)})
    drawn(plot_target(sk.targets.gaussian(1), {"x": np.full((2, 9, 1), np.nan)}))
    drawn(plot_target(sk.targets.gaussian(1), {"x": np.full((4, 100, 1), 1.3)}))
    drawn(plot_target(sk.targets.gaussian(2), {"x": np.full((1, 1, 2), 1e30)}))


def test_refusals_say_what_to_do() -> None:
    flat = sk.targets.gaussian(2)
    for target, more, match in (
        (sk.targets.gaussian(3), {}, "sk.plot_mixing"),
        (object(), {}, "sk.from_energy"),
        (sk.targets.noised_mixture([1.0], [[0.0, 0.0]]), {}, r"target\.at\(level\)"),
        (flat, {"run": {"y": noise(2, 9, 2)}}, "not one of this target"),
        (flat, {"bounds": [(0, 1)]}, r"\(low, high\) for each"),
        (EXACT["exponential"][0], {"bounds": (-3, -2)}, "beyond the support"),
        (sk.from_energy(lambda x: jnp.nan * x.sum(), 2), {}, "nowhere finite"),
    ):
        with pytest.raises(TargetError, match=match):
            plot_target(target, **more)
    for bounds in ((1, 0), "far", (0, np.inf), [(0, 1, 2)]):
        with pytest.raises(SettingsError, match="bounds="):
            plot_target(flat, bounds=bounds)


def test_a_discrete_target_has_no_picture() -> None:
    class Coin(Own):
        space = make_space(like=jnp.zeros(1, jnp.int32))

    with pytest.raises(TargetError, match="discrete"):
        plot_target(Coin())


# plot_mixing: contents --------------------------------------------------------------------------


def test_rows_and_strip(run) -> None:
    figure = plot_mixing(run)
    assert len(figure.axes) == 2 * 4 + 4
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles[:4] == ["ranks", "running mean", "autocorrelation", "where each chain was"]
    assert titles[8:] == [
        "acceptance by chain, goal 0.8", "what went wrong when", "energy", "log density"
    ]  # fmt: skip
    assert "NUTS: 4 chains of 200 draws" in texts(figure)
    assert len(plot_mixing({"x": noise(4, 50)}).axes) == 4 + 1  # no statistics


def test_worst_comes_first_and_constants_last() -> None:
    x = noise(4, 400, 6)
    x[:, :, 0] = 1.0
    x[0, :, 4] += 1
    x[0, 10, 2] = np.nan
    figure = plot_mixing({"x": x})
    shown = [part.get_suptitle() for part in figure.subfigs[:-1]]
    assert len(shown) == 4
    assert shown[0].startswith("x[2]   R-hat undefined")
    assert shown[1].startswith("x[4]   R-hat 1.1")
    assert "x[0]" not in texts(figure)
    figure = plot_mixing({"x": x}, worst=6)
    assert figure.subfigs[5].get_suptitle().startswith("x[0]")


def test_names_choose(run) -> None:
    values = {"a": noise(4, 50, 3), "b": noise(4, 50), "c": noise(4, 50, 20)}
    heads = [p.get_suptitle() for p in plot_mixing(values, ["a[1]", "b"]).subfigs[:-1]]
    assert {head.split()[0] for head in heads} == {"a[1]", "b"}
    assert len(plot_mixing(values, "c").subfigs) == 8 + 1
    assert len(plot_mixing(values, "c", worst=2).subfigs) == 2 + 1
    for names in ("d", ["a", "a[7]"], []):
        with pytest.raises(SettingsError, match="'a', 'b', 'c'"):
            plot_mixing(values, names)
    for worst in (0, "two"):
        with pytest.raises(SettingsError, match="worst="):
            plot_mixing(values, worst=worst)


def test_lines_are_what_they_are_called() -> None:
    x = noise(3, 300).cumsum(axis=1) * 0.1 + noise(3, 300, seed=1)
    ranks, mean, correlation, _ = plot_mixing({"x": x}).axes[:4]
    for chain in range(3):
        at, line = map(np.asarray, mean.lines[chain].get_data())
        np.testing.assert_allclose(line, [x[chain, : int(n)].mean() for n in at])
        lag, line = map(np.asarray, correlation.lines[1 + chain].get_data())
        centered = x[chain] - x[chain].mean()
        direct = [centered[: 300 - int(k)] @ centered[int(k) :] for k in lag]
        np.testing.assert_allclose(line, np.array(direct) / direct[0], atol=1e-10)
        height, edges, _ = parts(ranks, StepPatch)[chain].get_data()
        rank = stats.rankdata(x).reshape(3, 300)[chain]
        counts, _ = np.histogram((rank - 0.5) / 900, edges)
        np.testing.assert_allclose(height, counts / 300 * len(height))


def test_rank_band_holds_what_chance_does() -> None:
    """At most 5 % of runs of good chains leave the band: 14 of 100 have a chance of 3e-4."""
    chains, outside, ax = Chains.of(np.zeros(4)), 0, Picture((2, 2)).subplots()
    low, high = 0.0, 0.0
    for seed in range(100):
        ax.clear()
        plot_panels.ranks(ax, Scalar(noise(4, 250, seed=seed), 250.0, 1.0, ()), chains)
        band = parts(ax, mpl.patches.Rectangle)[0]
        low, high = band.get_y(), band.get_y() + band.get_height()
        heights = np.array([np.asarray(p.get_data()[0]) for p in parts(ax, StepPatch)])
        outside += ((heights < low) | (heights > high)).any()
    assert outside < 14
    # 20 bins of 12.5 draws of 250: sd √(19·¾/250) = 0.24, and 80 comparisons take 3.4 of them.
    assert high - 1 == pytest.approx(3.42 * 0.239, rel=0.01)


def test_a_chain_apart_leaves_the_rank_band() -> None:
    x = noise(4, 250)
    x[2] += 1
    ax = plot_mixing({"x": x}).axes[0]
    band = parts(ax, mpl.patches.Rectangle)[0]
    apart = np.asarray(parts(ax, StepPatch)[2].get_data()[0])
    assert apart.max() > band.get_y() + band.get_height()


def test_mode_shares_are_written() -> None:
    x = noise(4, 500) * 0.5
    for chain, share in enumerate((0.2, 0.4, 0.6, 1.0)):
        x[chain, : int(500 * share)] += 8
    x = np.random.default_rng(1).permuted(x, axis=1)
    ax = plot_mixing({"x": x}).axes[3]
    said = {(round(t.get_position()[1]), t.get_text()) for t in ax.texts}
    assert {(0, "20%"), (0, "80%"), (1, "40%"), (2, "60%"), (3, "100%"), (3, "0%")} <= said


def test_occupancy_has_a_row_for_each_chain() -> None:
    x = noise(5, 200)
    x[3] += 30
    (mesh,) = parts(plot_mixing({"x": x}).axes[3], QuadMesh)
    share = np.asarray(mesh.get_array())
    assert share.shape[0] == 5
    assert (share.sum(axis=1) > 0.95).all()  # the far chain is in view as well
    assert np.argmax(share[3]) > np.argmax(share[0])


def test_strip_shows_acceptance_and_events(run) -> None:
    sick = run.copy(deep=True)
    sick.sample_stats["diverging"].values[2, 50:60] = True
    acceptance, events = plot_mixing(sick).axes[8:10]
    dots = acceptance.collections[-1].get_offsets()
    rates = run.sample_stats["acceptance_rate"].values
    np.testing.assert_allclose(dots[:, 1], rates.mean(axis=1), rtol=1e-6)
    assert acceptance.lines[0].get_ydata()[0] == 0.8
    assert "10 divergences" in [t.get_text() for t in events.get_legend().get_texts()]
    assert events.get_legend_handles_labels()[1] == ["10 divergences"]


def test_standing_still_and_nonfinite_draws_are_events() -> None:
    x = noise(4, 400, 2)
    x[1, 100:300] = x[1, 100]
    x[3, 7] = np.nan
    labels = plot_mixing({"x": x}).axes[-1].get_legend_handles_labels()[1]
    assert labels == ["1 draw not finite", "200 draws standing still"]


# plot_mixing: whatever comes ----------------------------------------------------------------------


def frozen(*chains: int, apart: bool = False) -> np.ndarray:
    x = noise(4, 100, 2)
    for chain in chains:
        x[chain] = chain if apart else 0.5
    return x


def broken(value: float, chain: slice) -> np.ndarray:
    x = noise(4, 100, 2)
    x[chain, 30:] = value
    return x


ODD = {
    "one NaN": broken(np.nan, slice(0, 1)),
    "all NaN": broken(np.nan, slice(None))[:, 30:],
    "infinite": broken(-np.inf, slice(1, 2)),
    "one frozen": frozen(2),
    "all frozen": frozen(0, 1, 2, 3),
    "frozen apart": frozen(0, 1, 2, 3, apart=True),
    "one chain": noise(1, 300),
    "one chain, frozen": np.ones((1, 50)),
    "one draw": noise(4, 1),
    "one of all": noise(1, 1),
    "two draws": noise(2, 2),
    "five draws": noise(4, 5),
    "64 chains": noise(64, 30, 2),
    "1000 chains of one draw": noise(1000, 1),
    "integers": np.random.default_rng(0).integers(0, 2, (4, 100)),
    "huge": 1e300 * noise(4, 100),
    "tiny": 1e-300 * noise(4, 100),
    "heavy": np.random.default_rng(0).standard_cauchy((4, 200)),
    "float32": noise(4, 100).astype(np.float32),
}


@pytest.mark.parametrize("name", ODD)
def test_any_draws_can_be_drawn(name: str) -> None:
    assert drawn(plot_mixing({"x": ODD[name]}))


@pytest.mark.parametrize("value", [np.nan, 0.0, np.inf])
@pytest.mark.parametrize("chains", [slice(1, 2), slice(None)])
def test_any_statistics_can_be_drawn(run, value: float, chains: slice) -> None:
    sick = run.copy(deep=True)
    for name in ("energy", "lp", "acceptance_rate"):
        sick.sample_stats[name].values[chains] = value
    assert len(plot_mixing(sick, worst=1).axes) == 8


def test_names_are_text() -> None:
    figure = plot_mixing({"a$b_$^{": noise(2, 50), r"\frac{": noise(2, 50)})
    drawn(figure)
    assert "a$b_$^{" in texts(figure)


def test_runs_from_files_and_of_others(run, tmp_path) -> None:
    run.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    with warnings.catch_warnings():  # Zarr's own: consolidated metadata are no standard yet
        warnings.simplefilter("ignore")
        run.to_zarr(tmp_path / "run.zarr")
    whole = texts(plot_mixing(run, worst=1))
    assert texts(plot_mixing(tmp_path / "run.nc", worst=1)) == whole
    assert texts(plot_mixing(str(tmp_path / "run.zarr"), worst=1)) == whole
    import arviz as az

    figure = plot_mixing(az.load_arviz_data("centered_eight"), worst=1)
    assert "tau" in figure.subfigs[0].get_suptitle()
    assert "divergences" in texts(figure)
