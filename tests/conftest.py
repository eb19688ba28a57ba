"""Set JAX up for the tests, before anything else imports it."""

import os
from collections.abc import Iterator
from pathlib import Path

DEVICES = "--xla_force_host_platform_device_count"
if DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}=4".strip()
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Compilation makes the first example slow, and a run should repeat itself.
hypothesis.settings.register_profile("samplekit", deadline=None, derandomize=True)
hypothesis.settings.load_profile("samplekit")

DEFAULT_SEED = 20250607


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=DEFAULT_SEED, help="root seed of all randomness")


def pytest_report_header(config: pytest.Config) -> str:
    return f"samplekit: --seed {config.option.seed}, jax {jax.__version__}"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    return request.config.option.seed


@pytest.fixture
def key(seed: int) -> jax.Array:
    return jax.random.key(seed)


# Tests between two looks, and what a process may map: Linux allows 65,530 areas of memory, and
# every compiled program takes some.
_LOOK_EVERY, _MOST_AREAS = 50, 20_000
_seen = [0]


@pytest.fixture(autouse=True)
def forget_programs() -> Iterator[None]:
    """Drop compiled programs before they fill what the system lets one process map."""
    yield
    _seen[0] += 1
    maps = Path("/proc/self/maps")
    if _seen[0] % _LOOK_EVERY == 0 and maps.exists():
        with maps.open("rb") as areas:
            if sum(1 for _ in areas) > _MOST_AREAS:
                jax.clear_caches()
