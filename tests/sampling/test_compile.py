"""What is traced and imported: a second run compiles nothing, the first little."""

import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk

ROOT = Path(__file__).resolve().parents[2]
# Traces of the energy in the first run: its value at a start and in a step. The kernel's shapes are
# learned from the same two traces that the program is made of. MCLMC has two places in a step.
BUDGET = dict.fromkeys(["NUTS", "HMC", "MALA", "RandomWalk", "Barker", "Langevin"], 2)
BUDGET["MCLMC"] = 3


class Counter:
    """An energy that counts how often JAX traces it."""

    def __init__(self):
        self.traces = 0

    def __call__(self, x):
        self.traces += 1
        return jnp.sum(x**2) / 2


def sample(target, kernel=None, **options):
    settings = {"draws": 4, "warmup": 25, "chains": 2, "progress": False}
    return sk.sample(target, kernel, **settings | options)


KERNELS = {
    "NUTS": sk.NUTS(),
    "HMC": sk.HMC(),
    "MALA": sk.MALA(),
    "RandomWalk": sk.RandomWalk(),
    "Barker": sk.Barker(),
    "Langevin": sk.Langevin(0.1),
    "MCLMC": sk.MCLMC(),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_second_run_traces_nothing(name):
    kernel, energy = KERNELS[name], Counter()
    target = sk.from_energy(energy, 2)
    energy.traces = 0
    sample(target, kernel)
    assert energy.traces <= BUDGET[name]
    energy.traces = 0
    run = sample(target, kernel, seed=1, draws=7, warmup=40, thin=3)
    assert energy.traces == 0
    init = np.ones((2, 2), np.float32)
    sample(target, kernel, init=init)
    assert energy.traces == 1  # are the starts finite?
    sample(target, kernel, init=2 * init, keep_warmup=True)
    assert energy.traces == 1
    sk.resume(run, target, draws=3, progress=False)
    assert energy.traces <= 2  # is it the same target?
    energy.traces = 0
    again = sk.from_energy(energy, 2)  # one trace: is it a scalar?
    sample(again, kernel, seed=2)
    assert energy.traces == 1


def test_more_chains_are_the_same_program():
    for kernel, chains in ((sk.NUTS(), (1, 5)), (sk.MALA(), (3, 4))):
        energy = Counter()
        target = sk.from_energy(energy, 2)
        sample(target, kernel, chains=chains[0])
        energy.traces = 0
        sample(target, kernel, chains=chains[1])
        assert energy.traces == 0


TRACES = []


class Net(eqx.Module):
    mlp: eqx.nn.MLP

    def __call__(self, x):
        TRACES.append(x)
        return jnp.sum(x**2) + self.mlp(x)


def shifted(mean, x):
    TRACES.append(x)
    return jnp.sum((x - mean) ** 2)


def make_net(seed):
    return Net(eqx.nn.MLP(2, "scalar", 4, 1, key=jax.random.key(seed)))


def make_partial(seed):
    return jax.tree_util.Partial(shifted, np.full(2, seed, np.float32))


@pytest.mark.parametrize("make", [make_net, make_partial])
def test_other_weights_are_the_same_program(make):
    first, second = (sk.from_energy(make(seed), 2) for seed in (0, 5))
    one = sample(first, sk.MALA(0.3), warmup=0)["posterior"]["x"].values
    TRACES.clear()
    two = sample(second, sk.MALA(0.3), warmup=0)["posterior"]["x"].values
    assert not TRACES
    assert not np.array_equal(one, two)  # and yet the new weights count


def test_another_step_size_is_the_same_program():
    energy = Counter()
    target = sk.from_energy(energy, 2)
    sample(target, sk.MALA(0.3, metric=np.array([1.0, 2.0])))
    energy.traces = 0
    run = sample(target, sk.MALA(np.float32(0.5), metric=np.array([3.0, 2.0])))
    assert energy.traces == 0
    assert np.all(run["sample_stats"]["step_size"] == 0.5)
    sample(target, sk.kernel_of(run))
    assert energy.traces == 0


# Other processes ----------------------------------------------------------------------------


def run_python(code, **environment):
    own = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**own, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def imported(code, names):
    tell = "import sys; print([n for n in {!r} if n in sys.modules])"
    return run_python(f"{code}\n{tell.format(list(names))}")


def test_import_is_lazy():
    heavy = ["jax", "numpy", "xarray", "matplotlib", "sklearn", "arviz", "numpyro", "blackjax"]
    assert imported("import samplekit", heavy) == "[]"


SAMPLE = """
import samplekit as sk
target = sk.from_energy(lambda x: (x**2).sum() / 2, dim=2)
sk.sample(target, draws=20, warmup=20, chains=2, progress=False, cache={cache})
"""


def test_sampling_imports_little(tmp_path):
    """Also: the cache goes where the user's caches are."""
    heavy = ["arviz_stats", "arviz", "arviz_plots", "matplotlib", "sklearn", "equinox", "numpyro"]
    tell = "import sys, jax; print([n for n in {!r} if n in sys.modules], end=' '); "
    tell += "print(jax.config.jax_compilation_cache_dir)"
    code = SAMPLE.format(cache=True) + tell.format(heavy)
    found, folder = run_python(code, XDG_CACHE_HOME=str(tmp_path)).split("] ")
    assert found == "["
    assert Path(folder).parent == tmp_path / "samplekit"
    assert Path(folder).name.startswith(f"jax-{jax.__version__}-")
    assert any(Path(folder).iterdir())


def test_no_cache(tmp_path):
    """`cache=False` leaves JAX's configuration as it was."""
    values = "import jax; before = dict(jax.config.values)"
    after = "print([n for n, v in jax.config.values.items() if v != before[n]])"
    code = "\n".join([values, SAMPLE.format(cache=False), after])
    assert run_python(code, XDG_CACHE_HOME=str(tmp_path)) == "[]"
    assert not list(tmp_path.iterdir())
