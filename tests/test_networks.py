"""Networks: shapes, precision, smoothness, scaling by the noise; predictions as exact inverses."""

import io

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import samplekit as sk
from samplekit import losses, networks
from samplekit.core.errors import SettingsError, TargetError
from samplekit.networks.parts import affine

KEY = jax.random.key(3)

# name: (network, shape of a sample, whether it takes a noise level)
SCORES = {
    "MLP": (lambda: networks.MLP(KEY, 3, width=16), (3,), False),
    "NoiseConditionalMLP": (lambda: networks.NoiseConditionalMLP(KEY, 3, width=16), (3,), True),
    "UNet 8": (lambda: networks.UNet(KEY, (8, 8), width=8), (8, 8), True),
    "UNet 28": (lambda: networks.UNet(KEY, (28, 28), width=4), (28, 28), True),
    "UNet odd": (lambda: networks.UNet(KEY, (7, 5, 3), width=6), (7, 5, 3), True),
    "Conservative": (lambda: networks.Conservative(ENERGIES["EnergyMLP"][0]()), (3,), False),
    "Conservative with noise": (
        lambda: networks.Conservative(ENERGIES["InnerProductEnergy"][0]()),
        (3,),
        True,
    ),
}
ENERGIES = {
    "EnergyMLP": (lambda: networks.EnergyMLP(KEY, 3, width=16, confinement=0.1), (3,), False),
    "EnergyCNN 8": (lambda: networks.EnergyCNN(KEY, (8, 8), width=4), (8, 8), False),
    "EnergyCNN 28": (lambda: networks.EnergyCNN(KEY, (28, 28), width=4), (28, 28), False),
    "EnergyCNN odd": (lambda: networks.EnergyCNN(KEY, (7, 5, 3), width=4), (7, 5, 3), False),
    "InnerProductEnergy": (
        lambda: networks.InnerProductEnergy(networks.NoiseConditionalMLP(KEY, 3, width=16)),
        (3,),
        True,
    ),
}
EVERY = SCORES | ENERGIES
LARGE = {"UNet 28", "UNet odd", "EnergyCNN 28", "EnergyCNN odd"}
every_network = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in EVERY]
)
# U-Nets take seconds to compile, so large ones are slow tests; and where the size of the image
# says nothing new, only the small one is looked at.
small_network = pytest.mark.parametrize("name", [n for n in EVERY if n not in LARGE])


def made(name):
    make, shape, noisy = EVERY[name]
    return make(), shape, (jnp.float32(0.5),) if noisy else ()


def parameters(net):
    return sum(leaf.size for leaf in jax.tree.leaves(net))


@every_network
def test_one_sample_batch_and_flat(name, key):
    net, shape, level = made(name)
    out = shape if name in SCORES else ()
    batch = jax.random.normal(key, (4, *shape))
    over = jax.jit(lambda net, x: jax.vmap(lambda x: net(x, *level))(x))
    found = over(net, batch)
    assert found.shape == (4, *out)
    flat = over(net, batch.reshape(4, -1))  # images of kernels and tables are flat
    assert flat.shape == (4, *(() if name in ENERGIES else (batch[0].size,)))
    np.testing.assert_array_equal(flat.ravel(), found.ravel())
    # Only weights are leaves: JAX takes the network as it is.
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(net))


@small_network
def test_precision_follows_the_sample(name, key):
    net, shape, level = made(name)
    x = jax.random.normal(key, shape)
    single = jax.jit(lambda net, x: net(x, *level))(net, x)
    assert single.dtype == jnp.float32
    with jax.enable_x64(True):
        wide = np.asarray(x, np.float64)
        double = jax.jit(lambda net, x: net(x, *level))(net, wide)
        assert double.dtype == jnp.float64
    np.testing.assert_allclose(single, double, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["MLP", "EnergyMLP", "EnergyCNN 8", "NoiseConditionalMLP"])
def test_integers_are_numbers(name):
    """Weights cast to integers would all be zero."""
    net, shape, level = made(name)
    pixels = jnp.arange(np.prod(shape)).reshape(shape)
    np.testing.assert_array_equal(net(pixels, *level), net(pixels.astype(jnp.float32), *level))


@small_network
def test_gradients_are_finite_and_reach_every_weight(name, key):
    net, shape, level = made(name)
    data = jax.random.normal(key, (4, *shape))
    bare = (lambda net: losses.score_of(net)) if name in ENERGIES else (lambda net: net)

    @jax.jit
    @jax.grad
    def gradient(net):
        return losses.denoising(lambda x: bare(net)(x, *level), data, key, 0.5)

    # All but the last bias of an energy, a constant whose score is zero.
    *others, last = jax.tree.leaves(gradient(net))
    for leaf in others:
        assert jnp.isfinite(leaf).all()
        assert jnp.any(leaf != 0)
    constant = name in {"Conservative", "EnergyMLP"} or "CNN" in name
    assert jnp.any(last != 0) == (not constant)


def kinks(value):
    """Return the change of slope at 0 of a function of one number, relative, at two steps."""

    def kink(h):
        ahead, here, behind = value(h), value(0.0), value(-h)
        return abs(ahead - 2 * here + behind) / abs(ahead - behind)

    return float(kink(1e-3)), float(kink(1e-4))


@small_network
def test_second_derivatives_are_smooth(name):
    """A smooth function's change of slope falls tenfold with the step; that of a kink does not."""
    net, shape, _ = made(name)
    with jax.enable_x64(True):
        level = (jnp.float64(0.5),) if EVERY[name][2] else ()
        rng = np.random.default_rng(1)
        x, v, w = (jnp.asarray(rng.normal(size=shape)) for _ in range(3))

        @jax.jit
        def bend(t):
            """Return vᵀ∇s v, or vᵀ∇²E v, at x + tw: what implicit losses need to be smooth."""

            def value(u):
                out = net(x + t * w + u * v, *level)
                return jnp.sum(out * v) if out.shape else out

            slope = jax.grad(value)
            return slope(0.0) if name in SCORES else jax.grad(slope)(0.0)

        wide, near = kinks(bend)
    assert np.isfinite(wide)  # 0/0 for a second derivative that is constant
    np.testing.assert_allclose(near, wide / 10, rtol=0.2, atol=1e-6)  # O(h³), rounding


def test_kinks_are_seen():
    wide, near = kinks(lambda t: abs(t) + t)
    assert near == pytest.approx(wide)


@pytest.mark.parametrize(("inside", "out"), [(2, 128), (128, 2), (5, 5)])
def test_layers_are_equinox_own(inside, out):
    """Whatever the order of its products: values, and gradients of weights and inputs."""
    with jax.enable_x64(True):
        layer = eqx.nn.Linear(inside, out, key=jax.random.key(0), dtype=jnp.float64)
        rows = jax.random.normal(jax.random.key(1), (7, inside), jnp.float64)

        def loss(apply, layer, rows):
            return jnp.sum(jnp.sin(jax.vmap(lambda h: apply(layer, h))(rows)))

        ours = jax.grad(lambda *a: loss(affine, *a), argnums=(0, 1))(layer, rows)
        theirs = jax.grad(lambda *a: loss(lambda m, h: m(h), *a), argnums=(0, 1))(layer, rows)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


def test_the_benchmarks_network_has_its_parameters():
    assert parameters(networks.MLP(KEY, 2)) == (2 + 1) * 128 + (128 + 1) * 128 + (128 + 1) * 2
    assert parameters(networks.MLP(KEY, 2)) == 17_154
    assert parameters(networks.MLP(KEY, 4, 7, depth=0)) == 5 * 7
    assert parameters(networks.EnergyMLP(KEY, 2, width=8, depth=1)) == 3 * 8 + 9


@small_network
def test_saved_and_loaded(name, key):
    net, shape, level = made(name)
    other = jax.tree.map(jnp.zeros_like, net)
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, net)
    file.seek(0)
    loaded = eqx.tree_deserialise_leaves(file, other)
    x = jax.random.normal(key, shape)
    call = jax.jit(lambda net: net(x, *level))
    np.testing.assert_array_equal(call(loaded), call(net))


def test_other_weights_run_in_the_same_program():
    traced = []

    @jax.jit
    def call(net, x):
        traced.append(1)
        return net(x, 0.5)

    for seed in range(3):
        call(networks.NoiseConditionalMLP(jax.random.key(seed), 2, width=4), jnp.ones(2))
    assert len(traced) == 1


# The scaling by the noise ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda scale: networks.NoiseConditionalMLP(KEY, 64, width=16, data_scale=scale),
        lambda scale: networks.UNet(KEY, (64, 1), width=4, data_scale=scale),
    ],
)
def test_without_weights_the_score_is_that_of_gaussian_data(make, key):
    scale = 3.0
    net = jax.tree.map(jnp.zeros_like, make(scale))
    x = jax.random.normal(key, (64,))
    for sigma in (0.01, 1.0, 50.0):
        np.testing.assert_allclose(net(x, sigma), -x / (sigma**2 + scale**2), rtol=1e-5)


@pytest.mark.parametrize("name", ["NoiseConditionalMLP", "UNet 8"])
def test_a_new_network_starts_near_the_right_size_at_every_level(name, key):
    """σ·s + ε, what the loss squares, is of size 1 from σ = 0.001 to 1000, and input as well."""
    net, shape, _ = made(name)
    size = int(np.prod(shape))
    level = jax.jit(
        lambda k, sigma: losses.noise_conditional(net, jax.random.normal(k, (64, *shape)), k, sigma)
    )
    for sigma in np.geomspace(1e-3, 1e3, 7):
        assert level(key, jnp.asarray([sigma], jnp.float32)) / size < 2


def test_levels_are_told_apart():
    embedded = jax.vmap(networks.parts.embed)(jnp.geomspace(1e-3, 1e3, 200))
    apart = np.linalg.norm(np.asarray(embedded)[:, None] - np.asarray(embedded)[None], axis=-1)
    assert apart[~np.eye(200, dtype=bool)].min() > 0.1
    assert np.abs(embedded).max() <= 1


def test_a_small_network_learns_the_score_of_a_gaussian(key):
    """Centered data of another scale than the network's: s = −x/(0.25 + σ²), within a tenth."""
    net = networks.NoiseConditionalMLP(KEY, 2, width=32)
    data = 0.5 * jax.random.normal(key, (2048, 2))
    levels = jnp.array([1.0, 0.5, 0.25])
    adam = optax.adam(3e-3)

    def step(carry, k):
        net, state = carry
        slope = jax.grad(lambda net: losses.noise_conditional(net, data, k, levels))(net)
        with jax.numpy_dtype_promotion("standard"):  # Optax mixes integers in
            change, state = adam.update(slope, state)
        return (optax.apply_updates(net, change), state), None

    @jax.jit
    def train(net, keys):
        return jax.lax.scan(step, (net, adam.init(net)), keys)[0][0]

    trained = train(net, jax.random.split(key, 300))
    for sigma in levels:

        def true(x, sigma=sigma):
            return -x / (0.25 + sigma**2)

        noisy = data + sigma * jax.random.normal(key, data.shape)
        off = losses.explicit(lambda x, sigma=sigma: trained(x, sigma), true, noisy)
        assert off < 0.1**2 * losses.explicit(lambda x: 0 * x, true, noisy)


# Energies and their scores --------------------------------------------------------------------


def test_conservative_is_minus_the_gradient_and_does_no_work(key):
    energy = networks.EnergyMLP(KEY, 2, width=16, confinement=0.5)
    net = networks.Conservative(energy)
    x = jax.random.normal(key, (2,))
    np.testing.assert_allclose(net(x), -jax.grad(energy)(x), rtol=1e-6)
    jacobian = jax.jacfwd(net)(x)
    np.testing.assert_allclose(jacobian, jacobian.T, rtol=1e-4, atol=1e-6)
    draws = np.asarray(jax.random.normal(key, (300, 2)))
    assert sk.closed_loop_work(sk.from_score(net, 2), draws, loops=100).work < 1e-4
    free = sk.from_score(networks.MLP(KEY, 2, width=16), 2)
    assert sk.closed_loop_work(free, draws, loops=100).work > 1e-3


def test_inner_product_energy_of_a_gaussian_score_is_its_energy():
    net = jax.tree.map(jnp.zeros_like, networks.NoiseConditionalMLP(KEY, 2, width=4))
    energy = networks.InnerProductEnergy(net)
    x = jnp.array([1.0, -2.0])
    np.testing.assert_allclose(energy(x, 2.0), 5 / (2 * 5), rtol=1e-6)
    np.testing.assert_allclose(networks.Conservative(energy)(x, 2.0), -x / 5, rtol=1e-6)


@pytest.mark.parametrize("make", [networks.EnergyMLP, networks.EnergyCNN])
def test_confinement_adds_a_bowl(make, key):
    size = 9 if make is networks.EnergyMLP else (3, 3)
    x = jax.random.normal(key, (9,))
    added = make(KEY, size, width=4, confinement=2.0)(x) - make(KEY, size, width=4)(x)
    np.testing.assert_allclose(added, jnp.sum(x**2), rtol=1e-5)


# Predictions ----------------------------------------------------------------------------------

PROCESSES = {
    "variance exploding": (1.0, 0.7),
    "variance preserving": tuple(float(v) for v in networks.variance_preserving(0.3)),
}


@pytest.mark.parametrize("process", PROCESSES)
def test_predictions_convert_into_each_other(process, key):
    scale, sigma = PROCESSES[process]
    with jax.enable_x64(True):
        x, epsilon = jax.random.normal(key, (2, 5, 3))
        noisy = scale * x + sigma * epsilon
        score = -(noisy - scale * x) / sigma**2  # ∇ log N(x̃; a x, σ²)
        tight = {"rtol": 1e-13, "atol": 1e-14}  # a few roundings
        ask = {"sigma": sigma, "scale": scale}
        one = {"sigma": sigma}
        for found, expected in [
            (networks.score_from_epsilon(epsilon, **one), score),
            (networks.epsilon_from_score(score, **one), epsilon),
            (networks.denoised_from_score(score, noisy, **ask), x),
            (networks.score_from_denoised(x, noisy, **ask), score),
            (networks.denoised_from_epsilon(epsilon, noisy, **ask), x),
            (networks.epsilon_from_denoised(x, noisy, **ask), epsilon),
        ]:
            np.testing.assert_allclose(found, expected, **tight)
            assert found.dtype == jnp.float64


def test_tweedie_of_gaussian_data_is_the_posterior_mean():
    """x ~ N(0, 4), x̃ = ax + σε: E[x | x̃] = 4a x̃/(4a² + σ²)."""
    noisy = jnp.array([1.5])
    for scale, sigma in PROCESSES.values():
        score = -noisy / (4 * scale**2 + sigma**2)
        found = networks.denoised_from_score(score, noisy, sigma, scale=scale)
        np.testing.assert_allclose(found, 4 * scale * noisy / (4 * scale**2 + sigma**2), rtol=1e-5)


# Bad input ------------------------------------------------------------------------------------


def test_a_batch_is_told_to_use_vmap():
    with pytest.raises(TargetError, match="vmap"):
        networks.MLP(KEY, 2, width=4)(jnp.ones((5, 2)))
    with pytest.raises(TargetError, match="vmap"):
        networks.UNet(KEY, (8, 8), width=4)(jnp.ones((5, 8, 8)), 0.5)
    with pytest.raises(TargetError, match=r"shape \(2,\)"):
        networks.NoiseConditionalMLP(KEY, 2, width=4)(jnp.ones(3), 0.5)


def test_impossible_sizes_are_refused():
    for make in (
        lambda: networks.MLP(KEY, 0),
        lambda: networks.MLP(KEY, 2, width=0),
        lambda: networks.MLP(KEY, 2, depth=-1),
        lambda: networks.UNet(KEY, (8, 8), halvings=0),
        lambda: networks.EnergyCNN(KEY, (64,)),
        lambda: networks.EnergyCNN(KEY, (8, 0)),
    ):
        with pytest.raises(SettingsError, match="Give"):
            make()
