"""Gibbs and Gibbs with gradients: exact answers, mutants, Onsager, and the loop on integers."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy.special import ellipk

import samplekit as sk
from samplekit.core.errors import KernelError, TargetError
from samplekit.core.pytree import pytree, static
from samplekit.kernels.discrete import GibbsWithGradients
from samplekit.kernels.gibbs import Gibbs
from samplekit.targets.fields import Ising
from samplekit.targets.space import Space, make_space
from samplekit.testing import assert_mean, check_kernel

# Steps of a draw: as many flips as a field has sites, more or less.
KERNELS = {
    "gibbs": (Gibbs(), 1),
    "one flip": (GibbsWithGradients(), 12),
    "three flips": (GibbsWithGradients(flips=3), 8),
}
FIELDS = {
    "3×3": lambda: sk.targets.ising((3, 3), 0.2, 0.25),
    "4×4": lambda: sk.targets.ising((4, 4), 0.25, 0.1),
    "graph": lambda: sk.targets.pairwise_field(
        [0.4, -0.2, 0.0, 0.3, -0.5], [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4)],
        [0.8, -0.6, 0.5, 1.0, -0.7], values=(0, 1),
    ),
}  # fmt: skip


def sampled(target, kernel, **settings):
    return sk.sample(target, kernel, **{"progress": False, "warmup": 200, **settings})


def statistics(field, x):
    """Return every site, every product of two and the log density of states (..., *shape)."""
    flat = np.reshape(x, (*x.shape[: x.ndim - len(field.shape)], -1)).astype(np.float64)
    unary, weights = field._quadratic()
    energy = flat @ unary + 0.5 * np.einsum("...i,...i->...", flat @ weights, flat)
    first, second = np.transpose(list(itertools.combinations(range(flat.shape[-1]), 2)))
    return np.concatenate([flat, flat[..., first] * flat[..., second], energy[..., None]], axis=-1)


def assert_exact(field, kernel, thin, seed, target=None):
    """Compare all means, pair correlations and the energy of a run with enumeration."""
    target = field if target is None else target
    run = sampled(target, kernel, chains=16, draws=2500, thin=thin, seed=seed)
    exact = field.exact()
    known = statistics(field, exact.states.reshape(-1, *field.shape))
    expected = exact.probabilities @ known
    spread = np.sqrt(exact.probabilities @ known**2 - expected**2)
    got = statistics(field, run["posterior"]["x"].values)
    assert_mean(got, expected, resolves=0.12 * spread)
    return run


# The default run: each kernel and each field; `make test-slow`: all pairs.
QUICK = {("gibbs", "3×3"), ("gibbs", "4×4"), ("one flip", "4×4"), ("three flips", "3×3")}
PAIRS = [
    pytest.param(*pair, marks=() if pair in {*QUICK, ("gibbs", "graph")} else pytest.mark.slow)
    for pair in itertools.product(KERNELS, FIELDS)
]


@pytest.mark.statistical
@pytest.mark.parametrize(("kernel", "name"), PAIRS)
def test_all_means_and_pairs_are_those_of_the_enumeration(kernel, name, seed):
    field = FIELDS[name]()
    run = assert_exact(field, *KERNELS[kernel], seed)
    lp = run["sample_stats"]["lp"].values
    last = statistics(field, run["posterior"]["x"].values)[..., -1]
    assert np.abs(lp - last).max() <= 1e-5 * np.abs(last).max()


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("gibbs", "3×3"),
        pytest.param("one flip", "3×3", marks=pytest.mark.slow),
        ("three flips", "graph"),
    ],
)
def test_exact_draws_stay_in_equilibrium(kernel, name, key):
    check_kernel(KERNELS[kernel][0], FIELDS[name](), key, chains=4096, steps=10)


@pytree
class Accepts(GibbsWithGradients):
    """The acceptance step dropped."""

    def noise(self, key, x, shape=()):
        (u, log_u), shared = super().noise(key, x, shape)
        return (u, jnp.full_like(log_u, -jnp.inf)), shared


@pytree
class FieldSign(Ising):
    """The field with its sign flipped in the sweep."""

    def gibbs(self, key, x, /):
        return Ising.gibbs(dataclasses.replace(self, field=-jnp.asarray(self.field)), key, x)


@pytree
class AtOnce(Ising):
    """All sites drawn at once, neighbors too."""

    @property
    def colors(self):
        return np.zeros(self.shape, np.int8)


@pytree
class OneOffNeighbors(Ising):
    """A site with one neighbor too few."""

    def _neighbors(self, s):
        return super()._neighbors(s) - jnp.roll(s, 1, 0)


def changed(cls, field):
    return cls(field.coupling, field.field, field.periodic, field.space)


MUTANTS = {
    "no rejection": lambda field: (Accepts(), 12, field),
    "sign of the field": lambda field: (Gibbs(), 1, changed(FieldSign, field)),
    "all sites at once": lambda field: (Gibbs(), 1, changed(AtOnce, field)),
    "one neighbor missing": lambda field: (Gibbs(), 1, changed(OneOffNeighbors, field)),
}


@pytest.mark.statistical
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow if n == "one neighbor missing" else ())
        for n in MUTANTS
    ],
)
def test_mutants_fail_the_same_test(name, seed):
    field = FIELDS["4×4"]()
    kernel, thin, target = MUTANTS[name](field)
    with pytest.raises(AssertionError, match="is wrong"):
        assert_exact(field, kernel, thin, seed, target)


def onsager(coupling):
    """Return the mean of s_i s_j summed over the two bonds of a spin, on the infinite lattice."""
    tanh, sinh, cosh = (f(2 * coupling) for f in (np.tanh, np.sinh, np.cosh))
    kappa = 2 * sinh / cosh**2
    return (1 + 2 / np.pi * (2 * tanh**2 - 1) * ellipk(kappa**2)) / tanh


def kaufman(coupling, side):
    """Return log Z of the side × side torus, exactly (Kaufman 1949)."""
    k = np.arange(2 * side)
    gamma = np.arccosh(np.cosh(2 * coupling) / np.tanh(2 * coupling) - np.cos(k * np.pi / side))
    gamma[0] = 2 * coupling + np.log(np.tanh(coupling))
    half = side * np.abs(gamma) / 2
    cosh, sinh = (half + np.log1p(s * np.exp(-2 * half)) for s in (1, -1))
    logs = [cosh[1::2].sum(), sinh[1::2].sum(), cosh[::2].sum(), sinh[::2].sum()]
    signs = [1, 1, 1, np.sign(gamma[0])]
    top = max(logs)
    total = np.log(sum(s * np.exp(v - top) for s, v in zip(signs, logs, strict=True)))
    return top + total - np.log(2) + side**2 / 2 * np.log(2 * np.sinh(2 * coupling))


def energy_of_torus(coupling, side):
    step = 1e-5  # a central difference: the error is about step² and rounding / step, 1e-9
    both = [kaufman(coupling + s * step, side) for s in (1, -1)]
    return (both[0] - both[1]) / (2 * step * side**2)


@pytest.mark.statistical
@pytest.mark.parametrize("coupling", [0.5, 0.4, 0.3])  # 0.4407 is critical
def test_energy_per_spin_is_onsagers(coupling, seed):
    """On the 64 × 64 torus, whose own energy is known too and differs by less than the noise."""
    side = 64
    field = sk.targets.ising((side, side), coupling)
    small = sk.targets.ising((4, 4), coupling).exact()
    assert kaufman(coupling, 4) == pytest.approx(small.log_normalizer, rel=1e-12)
    of_size = abs(onsager(coupling) - energy_of_torus(coupling, side))
    assert of_size < 1e-4  # exp(−side / correlation length), 2e-5 at 0.4
    start = np.ones((8, side, side), np.int8)  # ordered: below T_c the other sign is never seen
    run = sampled(field, Gibbs(), chains=8, init=start, draws=500, thin=4, warmup=600, seed=seed)
    energy = run["sample_stats"]["lp"].values / (coupling * side**2)
    assert_mean(energy, onsager(coupling), resolves=0.02)


@pytest.mark.statistical
def test_marginals_of_a_denoised_image(seed):
    noisy = np.array([[1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0]])
    field = sk.targets.denoising_field(noisy, coupling=0.5, flip=0.2)
    assert_exact(field, Gibbs(), 1, seed)


@pytest.mark.parametrize("name", FIELDS)
def test_differences_are_exact_where_the_energy_is_linear_in_each_site(name, key):
    field = FIELDS[name]()
    x = field.draw(key, 1)[0]
    state = GibbsWithGradients().init(key, x, field)
    low, high = field.values
    other = low + high - np.asarray(x)
    estimated = np.asarray(state.score) * (other - np.asarray(x))
    for site in np.ndindex(x.shape):
        y = np.array(x)
        y[site] = other[site]
        true = float(field.log_density(y)) - float(field.log_density(x))
        assert estimated[site] == pytest.approx(true, abs=1e-5)


@pytree
class Blocks:
    """A target that can do no more than draw its blocks."""

    chance: float
    space: Space = static()

    def gibbs(self, key, x, /):
        return jax.random.bernoulli(key, self.chance, x.shape)


def test_a_target_of_blocks_alone_is_sampled():
    target = Blocks(0.3, make_space(like=np.zeros(5, bool)))
    run = sampled(target, None, chains=16, draws=500)
    assert run["posterior"]["x"].dtype == bool
    assert "sample_stats" not in run.children
    assert_mean(run["posterior"]["x"].values, 0.3, resolves=0.1)
    again = sk.resume(run, target, draws=5, progress=False)
    assert again["posterior"].sizes["draw"] == 505
    with pytest.raises(KernelError, match=r"GibbsWithGradients needs a log density.*sk.Gibbs\(\)"):
        sampled(target, GibbsWithGradients())


@pytest.mark.statistical
def test_booleans_and_pytrees_are_sampled():
    weights = np.array([0.5, -1.0, 1.5], np.float32)

    def log_density(p):
        a, b = (jnp.asarray(p[name], jnp.float32) for name in "ab")
        return jnp.sum(weights * a) + 0.7 * b[0] * a[0] - 0.2 * b[0]

    like = {"a": np.zeros(3, np.int8), "b": np.ones(1, np.int8)}
    target = sk.from_log_density(log_density, like=like, values=(0, 1))
    run = sampled(target, None, chains=8, draws=4000, thin=2)
    p = np.exp(
        [[log_density({"a": np.array([a, 0, 0]), "b": [b]}) for b in (0, 1)] for a in (0, 1)]
    )
    p = np.asarray(p) / np.sum(p)
    assert_mean(run["posterior"]["a"].values[..., 0], p[1].sum(), resolves=0.1)
    assert_mean(run["posterior"]["b"].values[..., 0], p[:, 1].sum(), resolves=0.1)
    target = sk.from_log_density(
        lambda x: jnp.sum(weights * x.astype(jnp.float32)), like=np.zeros(3, bool)
    )
    run = sampled(target, GibbsWithGradients(), chains=8, draws=4000)
    assert run["posterior"]["x"].dtype == bool
    assert_mean(run["posterior"]["x"].values, 1 / (1 + np.exp(-weights)), resolves=0.1)


@pytest.mark.statistical
def test_a_proposal_of_ones_own_moves_integers(seed):
    field = FIELDS["3×3"]()

    def flip_one(key, x):
        site = jax.random.randint(key, (), 0, x.size)
        return x.ravel().at[site].multiply(-1).reshape(x.shape)

    assert_exact(field, sk.MetropolisHastings(flip_one, "symmetric"), 12, seed)


# One by one, and as a batch.
LAYOUTS = [("gibbs", 4), ("three flips", 20), ("gibbs", 20), ("three flips", 4)]


@pytest.mark.parametrize(
    ("kernel", "chains"),
    [*LAYOUTS[:2], *(pytest.param(*row, marks=pytest.mark.slow) for row in LAYOUTS[2:])],
)
def test_resumed_and_stored_runs_are_the_straight_one(kernel, chains, tmp_path):
    field, moves = sk.targets.ising((4, 6), 0.3, 0.1), KERNELS[kernel][0]
    whole = sampled(field, moves, chains=chains, draws=60, warmup=20)
    part = sampled(field, moves, chains=chains, draws=25, warmup=20)
    more = sk.resume(part, field, draws=35, progress=False)
    sampled(field, moves, chains=chains, draws=25, warmup=20, store=tmp_path / "run.zarr")
    sk.resume(tmp_path / "run.zarr", field, draws=35, progress=False)
    stored = xr.open_datatree(tmp_path / "run.zarr", engine="zarr")
    assert stored["posterior"]["x"].dtype == np.int8
    for other in (more, stored):
        for group, name in (("posterior", "x"), ("sample_stats", "lp")):
            assert np.array_equal(other[group][name].values, whole[group][name].values)
    with pytest.raises(sk.errors.ResumeError, match="another target"):
        sk.resume(part, sk.targets.ising((4, 6), 0.4, 0.1), progress=False)


def test_many_chains_are_the_few_and_more():
    """Spins have no rounding: the batch of 20 and the 4 threads agree to the bit."""
    field = sk.targets.ising((4, 4), 0.3)
    few, many = (sampled(field, Gibbs(), chains=n, draws=50)["posterior"]["x"] for n in (4, 20))
    assert np.array_equal(few.values, many.values[:4])


def test_chains_start_apart_or_where_they_are_told():
    field = sk.targets.ising((6, 6), 0.0, 30.0)  # any other state would be left at once
    run = sk.sample(field, GibbsWithGradients(), chains=4, draws=1, warmup=0, progress=False)
    starts = run["sampler"]["starts"].values
    assert set(np.unique(starts)) == {-1.0, 1.0}
    assert len(np.unique(starts, axis=0)) == 4
    init = np.ones((4, 6, 6), np.int8)
    run = sampled(field, Gibbs(), init=init, draws=2)
    assert np.all(run["sampler"]["starts"].values == 1)
    with pytest.raises(TargetError, match="other values than -1 and 1"):
        sampled(field, Gibbs(), init=0 * init)
    with pytest.raises(TargetError, match=r"must be \[4, 6, 6\]"):
        sampled(field, Gibbs(), init=init[:, :5])


def test_the_default_kernel_of_a_field_is_gibbs():
    run = sk.sample(FIELDS["3×3"](), draws=5, warmup=5, progress=False)
    assert type(sk.kernel_of(run)) is Gibbs


def test_kernels_and_targets_that_do_not_fit_are_refused():
    field, smooth = FIELDS["3×3"](), sk.targets.gaussian(2)
    for kernel in (sk.NUTS(), sk.Langevin(0.1), sk.RandomWalk(), sk.HMC()):
        fits = r"integers or booleans\. Kernels that fit: sk\.Gibbs\(\), sk\.GibbsWithGradients\(\)"
        with pytest.raises(KernelError, match=fits):
            sampled(field, kernel)
    with pytest.raises(KernelError, match=r"no gibbs\(key, x\)\. Kernels that fit: sk\.NUTS\(\)"):
        sampled(smooth, Gibbs())
    with pytest.raises(KernelError, match=r"real numbers\. Kernels that fit: sk\.NUTS\(\)"):
        sampled(smooth, GibbsWithGradients())
    with pytest.raises(KernelError, match="needs a positive integer"):
        GibbsWithGradients(flips=0)
    nameless = sk.from_log_density(
        lambda x: jnp.sum(x.astype(jnp.float32)), like=np.zeros(2, np.int32)
    )
    with pytest.raises(KernelError, match=r"does not say which two.*values=\(-1, 1\)"):
        sampled(nameless, GibbsWithGradients())


def test_the_verdict_on_a_field():
    healthy = sampled(sk.targets.ising((6, 6), 0.2), Gibbs(), draws=1000)
    assert sk.diagnose(healthy).ok
    # A spin that its field holds fast is the same in all chains: no fault, and NaN in the table.
    pinned = np.zeros((4, 4))
    pinned[0, 0] = 15.0
    field = sk.targets.ising((4, 4), 0.2, pinned)
    held = sk.diagnose(sampled(field, Gibbs(), draws=1000), field)
    assert held.ok
    assert np.isnan(held.table.loc["x[0, 0]", "r_hat"])
    # Ordered chains of either sign disagree, and NUTS is no help.
    ordered = np.ones((4, 16, 16), np.int8) * np.array([1, 1, -1, -1], np.int8)[:, None, None]
    split = sk.diagnose(sampled(sk.targets.ising((16, 16), 0.6), Gibbs(), init=ordered))
    assert not split.ok
    assert {"rhat", "ess-bulk"} <= {f.code for f in split.findings}
    assert "temper" in str(split)
    assert "NUTS" not in str(split)
    # Proposals that are always taken are the best there are.
    free = sampled(sk.targets.ising((3, 3), 0.0), GibbsWithGradients(), draws=4000, thin=9)
    assert sk.diagnose(free).ok
