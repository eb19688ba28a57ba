"""What XLA is told of this machine, and what happens where it does not listen."""

import jax
import jax.numpy as jnp
import pytest

from samplekit.sampling import compiled
from samplekit.sampling.compiled import OWN_PRODUCTS, WIDE, Compiled, has_fast_wide_vectors


@pytest.fixture
def options(monkeypatch):
    """Return the options of a processor with, or without, fast wide vectors."""

    def options(*, wide, own_products=False):
        monkeypatch.setattr(compiled, "has_fast_wide_vectors", lambda: wide)
        return compiled._options.__wrapped__(own_products=own_products)

    return options


@pytest.mark.parametrize(
    ("flags", "wide"),
    [
        ("fpu sse2 avx2 avx512f avx512bw avx512_vbmi2", True),
        ("fpu sse2 avx2 avx512f avx512bw", False),  # Skylake: its clock falls
        ("fpu sse2 avx2", False),
    ],
)
def test_wide_vectors_only_where_the_clock_stays(tmp_path, flags, wide):
    found = tmp_path / "cpuinfo"
    found.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: sysret\n")
    assert has_fast_wide_vectors(str(found)) is wide


def test_a_processor_that_says_nothing_of_flags(tmp_path):
    (tmp_path / "arm").write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert not has_fast_wide_vectors(str(tmp_path / "arm"))


def test_options_are_known_to_the_tested_version(options):
    assert options(wide=True) == WIDE
    assert options(wide=True, own_products=True) == WIDE | OWN_PRODUCTS
    assert options(wide=False, own_products=True) == OWN_PRODUCTS
    assert options(wide=False) is None


def test_an_option_that_xla_does_not_know_is_left_out(options, monkeypatch):
    monkeypatch.setattr(compiled, "OWN_PRODUCTS", {"xla_cpu_no_such_option": ""})
    assert options(wide=True, own_products=True) == WIDE
    assert options(wide=False, own_products=True) is None


def test_other_devices_are_told_nothing(options, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert options(wide=True, own_products=True) is None


def test_settings_of_jit_arrive():
    give = Compiled(lambda n, x: x + n, static_argnums=0, donate_argnums=1)
    x = jnp.zeros(3)
    assert give(2, x).tolist() == [2, 2, 2]
    assert x.is_deleted()
    assert "2.0" in give.lower(2, jnp.zeros(3)).as_text()  # the number is code


def test_options_arrive_at_xla(monkeypatch):
    monkeypatch.setattr(compiled, "_options", lambda *, own_products: {"xla_cpu_no_such": "1"})
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_cpu_no_such"):
        Compiled(lambda x: x)(jnp.zeros(1))
