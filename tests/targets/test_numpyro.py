"""NumPyro models as targets: NumPyro's own density, names, labels, and clear refusals."""
# NumPyro says that a draw is an ArrayLike, which has no arithmetic.
# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportArgumentType=false

import importlib.util
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints
from numpyro.infer.reparam import LocScaleReparam, TransformReparam
from numpyro.infer.util import initialize_model, log_density

import samplekit as sk
from samplekit.core.errors import TargetError

REFERENCE = Path(__file__).parents[1] / "reference"
NAMES = sorted(path.parent.name for path in REFERENCE.glob("*/model.py"))


@pytest.fixture(autouse=True)
def relaxed():
    """The models and NumPyro itself promote ranks and dtypes."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def reference(name):
    spec: Any = importlib.util.spec_from_file_location(
        f"reference_{name}", REFERENCE / name / "model.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.model, json.loads((REFERENCE / name / "data.json").read_text())


def start(target, key, scale=0.5):
    flat = scale * jax.random.normal(key, (target.space.size,))
    return target.space.unravel(flat)


def check_against_numpyro(target, key, *, rtol):
    """Density, gradient, constrained values and the way back, at a random position."""
    x = start(target, key)

    @jax.jit
    def ours(target, x):
        y = target.constrain(x)
        return (
            target.log_density(x),
            target.score(x),
            y,
            target.unconstrain(y),
            target.log_jacobian(x),
        )

    shapes = {}

    @jax.jit  # initialize_model is slow when run eagerly
    def theirs(x):
        call, key = target.call, jax.random.key(0)
        info = initialize_model(key, call.model, model_args=call.args, model_kwargs=call.kwargs)
        shapes.update({n: z.shape for n, z in info.param_info.z.items()})
        y = info.postprocess_fn(x)
        latent = {n: y[n] for n in x}
        joint = log_density(call.model, call.args, call.kwargs, latent)[0]
        return *jax.value_and_grad(info.potential_fn)(x), y, joint

    density, score, y, back, log_jacobian = ours(target, x)
    potential, grad, expected, joint = theirs(x)
    assert shapes == {leaf.name: leaf.shape for leaf in target.space.leaves}
    np.testing.assert_allclose(density, -potential, rtol=rtol)
    np.testing.assert_allclose(density - log_jacobian, joint, rtol=rtol, atol=rtol)
    largest = max(float(jnp.abs(g).max()) for g in grad.values())
    for name in grad:
        np.testing.assert_allclose(score[name], -grad[name], rtol=rtol, atol=rtol * largest)
        np.testing.assert_allclose(back[name], x[name], atol=1e3 * rtol)
    assert y.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(y[name], expected[name], rtol=rtol, atol=rtol)
        assert len(target.dims()[name]) == y[name].ndim
        assert [len(target.coords()[d]) for d in target.dims()[name]] == list(y[name].shape)


@pytest.mark.parametrize("name", NAMES)
def test_reference_models(name, key):
    model, data = reference(name)
    truth = json.loads((REFERENCE / name / "truth.json").read_text())
    with jax.enable_x64(True):
        target = sk.from_numpyro(model, **data)
        check_against_numpyro(target, key, rtol=1e-10)
    assert target.space.size == truth["dim_unconstrained"]
    shapes = {s.name: list(s.shape) for s in target.variables}
    assert {n: shapes[n] for n in truth["params"]} == {
        n: p["shape"] for n, p in truth["params"].items()
    }
    observed = target.observed()
    assert list(observed) == ([] if name in {"hmm_example", "low_dim_gauss_mix"} else ["obs"])
    assert target.observed_dims().keys() == observed.keys()


def normal_model(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("school", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.deterministic("effect", theta - mu)
        numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)


def constrained_model():
    numpyro.sample("probs", dist.Dirichlet(jnp.ones(3)))
    numpyro.sample("corr", dist.LKJCholesky(3, 1.0))
    numpyro.sample("angle", dist.VonMises(0.0, 1.0))
    numpyro.sample("cuts", dist.ImproperUniform(constraints.ordered_vector, (), (4,)))
    low = numpyro.sample("low", dist.Normal())
    numpyro.sample("above", dist.TruncatedNormal(0.0, 1.0, low=low))
    numpyro.sample(
        "logit", dist.TransformedDistribution(dist.Normal(), dist.transforms.ExpTransform())
    )
    numpyro.sample("many", dist.Gamma(2.0), sample_shape=(2,))
    numpyro.factor("penalty", -(low**2))


def scan_model(y):
    drift = numpyro.sample("drift", dist.Normal())

    def step(x, now):
        with numpyro.plate("series", 2):
            x = numpyro.sample("x", dist.Normal(x + drift, 1.0))
            scale = numpyro.sample("scale", dist.HalfNormal(1.0))
            numpyro.sample("y", dist.Normal(x, scale), obs=now)
        return x, x

    scan(step, jnp.zeros(2), y)


def plated_model(y):
    rows, columns = numpyro.plate("row", 3, dim=-2), numpyro.plate("column", 2, dim=-1)
    with rows:
        a = numpyro.sample("a", dist.Normal())
    with rows, columns:
        b = numpyro.sample("b", dist.Normal().expand([4]).to_event(1))
        numpyro.deterministic("norm", (b**2).sum(-1))
        numpyro.deterministic("twice", 2 * b)
        with numpyro.handlers.mask(mask=~jnp.isnan(y)):
            numpyro.sample("y", dist.Normal(a + b.sum(-1), 1.0), obs=y)


MASKED = np.where(np.eye(3, 2) > 0, np.nan, 0.5)
MODELS = {
    "constrained": (constrained_model,),
    "scan": (scan_model, np.linspace(-1.0, 1.0, 8).reshape(4, 2)),
    "plates": (plated_model, MASKED),
    "reparam": (
        numpyro.handlers.reparam(normal_model, config={"theta": LocScaleReparam(0.0)}),
        np.arange(5.0),
    ),
}


@pytest.mark.filterwarnings("ignore:Continuous inference poorly handles circular")
@pytest.mark.parametrize("name", MODELS)
def test_models_of_all_kinds(name, key):
    with jax.enable_x64(True):
        check_against_numpyro(sk.from_numpyro(*MODELS[name]), key, rtol=1e-9)


def test_strict_promotion_is_the_users_affair(key):
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        target = sk.from_numpyro(plated_model, MASKED)
        assert jnp.isfinite(target.log_density(start(target, key)))


def test_shapes_of_constrained_sites():
    space = sk.from_numpyro(constrained_model).space
    shapes = {leaf.name: leaf.shape for leaf in space.leaves}
    assert shapes["probs"] == (2,)
    assert shapes["corr"] == (3,)
    assert shapes["cuts"] == (4,)
    assert list(shapes) == sorted(shapes)


def test_constrain_gives_latents_in_model_order_then_deterministics(key):
    target = sk.from_numpyro(normal_model, np.arange(3.0))
    y = target.constrain(start(target, key))
    assert list(y) == ["mu", "tau", "theta", "effect"]
    assert list(target.dims()) == list(y)
    batch = jax.vmap(target.constrain)(
        jax.tree.map(lambda a: jnp.stack([a, a]), start(target, key))
    )
    assert batch["effect"].shape == (2, 3)


def test_plates_name_dimensions():
    target = sk.from_numpyro(plated_model, MASKED)
    assert target.dims() == {
        "a": ("row", "a_dim_1"),
        "b": ("row", "column", "b_dim_2"),
        "norm": ("row", "column"),
        "twice": ("row", "column", "twice_dim_2"),
    }
    assert target.coords()["row"] == (0, 1, 2)
    assert target.observed_dims() == {"y": ("row", "column")}
    np.testing.assert_array_equal(target.observed()["y"], MASKED)

    reparam = sk.from_numpyro(*MODELS["reparam"])
    assert reparam.dims()["theta"] == reparam.dims()["theta_decentered"] == ("school",)
    scanned = sk.from_numpyro(*MODELS["scan"])
    assert scanned.dims()["x"] == ("x_dim_0", "series")
    assert scanned.observed()["y"].shape == (4, 2)


def test_a_plate_may_be_called_chain():
    def model():
        with numpyro.plate("chain", 2):
            numpyro.sample("x", dist.Normal())

    assert sk.from_numpyro(model).dims() == {"x": ("chain_plate",)}


def test_labels():
    target = sk.from_numpyro(normal_model, np.arange(3.0))
    named = target.labeled(dims={"effect": "place"}, coords={"school": ["a", "b", "c"]})
    assert named.dims()["effect"] == ("place",)
    assert named.coords() == {"school": ("a", "b", "c"), "place": (0, 1, 2)}
    assert named.observed_coords() == {"school": ("a", "b", "c")}
    assert target.coords()["school"] == (0, 1, 2)
    assert named.labeled(dims={"y": ["day"]}).coords()["school"] == ("a", "b", "c")
    with pytest.raises(TargetError, match=r"'theta'.*has shape"):
        target.labeled(dims={"theta": ["a", "b"]})
    with pytest.raises(TargetError, match=r"'nothing'.*is no site"):
        target.labeled(dims={"nothing": ["a"]})
    with pytest.raises(TargetError, match="2 labels for 'school'"):
        target.labeled(coords={"school": ["a", "b"]})


def test_equal_calls_share_one_program(key):
    traces = []

    def model(y, scale=1.0):
        traces.append(1)
        mu = numpyro.sample("mu", dist.Normal())
        numpyro.sample("y", dist.Normal(mu, scale), obs=y)

    evaluate = jax.jit(lambda target, x: target.log_density(x))

    def compiled(*args, **kwargs):
        target = sk.from_numpyro(model, *args, **kwargs)
        traces.clear()
        evaluate(target, {"mu": jnp.zeros(())})
        return len(traces)

    data = np.arange(3.0)
    assert compiled(data) == 1
    assert compiled(data.copy()) == 0
    data[0] = 7.0  # the target keeps its own copy, so a change in place is another data set
    assert compiled(data) == 1
    assert compiled(np.arange(3.0)) == 0
    assert compiled(np.arange(4.0)) == 1
    assert compiled(np.arange(3.0), scale=2.0) == 1
    assert compiled(np.arange(3.0), scale=2.0) == 0
    assert compiled(jnp.arange(3.0)) == 1
    assert compiled(jnp.arange(3.0)) == 0


def test_bound_methods_are_one_model():
    class Model:
        def __call__(self):
            numpyro.sample("x", dist.Normal())

        def method(self):
            self()

    model = Model()
    calls = [sk.from_numpyro(model.method).call for _ in range(2)]
    assert calls[0] == calls[1]
    assert calls[0] != sk.from_numpyro(Model().method).call
    assert repr(sk.from_numpyro(model)) == "NumpyroTarget(Model: x)"


def test_one_abstract_trace_compiles_nothing():
    calls = []

    def model(y):
        calls.append(1)
        normal_model(y)

    client = jax.local_devices()[0].client
    before = len(client.live_executables())
    with jax.checking_leaks():
        sk.from_numpyro(model, np.arange(3.0))
    assert len(client.live_executables()) == before
    assert len(calls) == 1


def test_threads_take_turns():
    targets = [sk.from_numpyro(normal_model, np.arange(n + 1.0)) for n in range(20)]

    def trace(target):
        x = jax.eval_shape(target.space.unravel, jnp.zeros(target.space.size))
        return str(jax.make_jaxpr(target.log_density)(x))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(trace, targets))
    assert found == [trace(target) for target in targets]


def test_observed_values_that_follow_latents_are_no_data():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal())
        numpyro.sample("residual", dist.Normal(), obs=y - mu)
        numpyro.sample("log", dist.Normal(mu), obs=jnp.log(y))

    target = sk.from_numpyro(model, np.ones(3))
    observed = jax.jit(lambda: target.observed())()  # a trace around must not matter
    np.testing.assert_array_equal(observed["log"], np.zeros(3))
    assert list(target.observed()) == ["log"]


def test_condition_and_transform_reparam():
    def model():
        base = dist.TransformedDistribution(
            dist.Normal(), dist.transforms.AffineTransform(3.0, 2.0)
        )
        x = numpyro.sample("x", base)
        numpyro.sample("y", dist.Normal(x, 1.0))

    reparam = numpyro.handlers.reparam(model, config={"x": TransformReparam()})
    target = sk.from_numpyro(numpyro.handlers.condition(reparam, data={"y": 1.0}))
    assert list(target.dims()) == ["x_base", "x"]
    assert target.observed()["y"] == 1.0


def test_params_stay_at_their_initial_value():
    def model(y):
        shift = numpyro.param("shift", lambda key: jax.random.normal(key, (2,)))
        fixed = numpyro.param("fixed", 3.0)
        mu = numpyro.sample("mu", dist.Normal())
        numpyro.deterministic("level", mu + shift + fixed)
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    levels = [sk.from_numpyro(model, np.ones(2)).constrain({"mu": 0.0})["level"] for _ in range(2)]
    np.testing.assert_array_equal(*levels)
    assert levels[0][0] != levels[0][1]


def test_unconstrain_checks_names_and_shapes(key):
    target = sk.from_numpyro(normal_model, np.arange(3.0))
    values = {"mu": 0, "tau": 1.0, "theta": np.zeros(3)}
    assert target.unconstrain(values)["tau"] == 0.0
    assert target.unconstrain({**values, "effect": np.zeros(3)}).keys() == values.keys()
    with pytest.raises(TargetError, match="miss 'mu', 'tau' and have the unknown 'nu'"):
        target.unconstrain({"nu": 1.0, "theta": np.zeros(3)})
    with pytest.raises(TargetError, match=r"'theta' has shape \(2,\).*has \(3,\)"):
        target.unconstrain({**values, "theta": np.zeros(2)})


def refuse(match, model, *args, **kwargs):
    with pytest.raises(TargetError, match=match):
        sk.from_numpyro(model, *args, **kwargs)


def test_discrete_latents_are_refused():
    def model(y):
        z = numpyro.sample("z", dist.Categorical(jnp.ones(2) / 2))
        numpyro.sample("k", dist.Poisson(1.0))
        numpyro.sample("y", dist.Normal(jnp.array([-1.0, 1.0])[z], 1.0), obs=y)

    refuse("discrete latent sites 'z', 'k'.*logsumexp.*DiscreteHMCGibbs", model, np.ones(3))


def test_missing_data_are_refused():
    data = np.array([1.0, np.nan, 2.0, np.nan])
    match = r"'y' hold 2 missing values \(NaN\), the first at index \(1,\).*latent site"
    refuse(match, normal_model, data)
    refuse(match, lambda y: normal_model(jnp.asarray(y)), data)
    refuse(match, lambda y: normal_model(jnp.asarray(y)), data.tolist())
    model, given = reference("sblrc")
    refuse("argument y holds None", model, **{**given, "y": [None, *given["y"][1:]]})

    late = sk.from_numpyro(lambda y: normal_model(jnp.log(y)), np.array([-1.0]))
    with pytest.raises(TargetError, match="1 missing values"):
        late.observed()


def test_obs_mask_is_refused():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal())
        numpyro.sample("y", dist.Normal(mu).expand(y.shape), obs=y, obs_mask=~np.isnan(y))

    refuse("obs_mask= at site 'y'", model, np.array([1.0, np.nan]))


def test_subsampling_is_refused():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal())
        with numpyro.plate("batch", len(y), subsample_size=2) as index:
            numpyro.sample("y", dist.Normal(mu), obs=y[index])

    refuse("subsamples the plate 'batch'.*HMCECS", model, jnp.ones(5))


def test_a_model_without_latents_is_refused():
    refuse("no latent site", lambda: numpyro.sample("y", dist.Normal(), obs=1.0))


def test_a_support_without_bijection_is_refused():
    refuse("'d' lies on.*reparam", lambda: numpyro.sample("d", dist.ProjectedNormal(jnp.ones(3))))


def test_a_failing_model_says_why():
    refuse(
        r"failed when called: TypeError.*normal_model\(y\).*Pass all its arguments", normal_model
    )

    def branches():
        if numpyro.sample("x", dist.Normal()) > 0:
            numpyro.sample("y", dist.Normal())

    refuse("branches.*jnp.where", branches)
    assert sk.from_numpyro(normal_model, np.ones(2))  # NumPyro's stack is clean again
