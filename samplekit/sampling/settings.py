"""What the user asked for: checked before anything is compiled, and the timeline it makes."""

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from samplekit.core.errors import KernelError, SettingsError
from samplekit.core.keys import as_threefry, from_seed, from_words, seed_words
from samplekit.core.protocols import BlockTarget, DensityTarget, ScoreTarget
from samplekit.kernels.base import Base
from samplekit.sampling.stop import Converged

# What a message names as fitting, and the module of each.
_OFFERED = {
    "sk.NUTS()": "nuts",
    "sk.HMC()": "hamiltonian",
    "sk.MALA()": "langevin",
    "sk.RandomWalk()": "metropolis",
    "sk.Langevin(step_size)": "langevin",
    "sk.ScoreMALA()": "score_mala",
    "sk.Gibbs()": "gibbs",
    "sk.GibbsWithGradients()": "discrete",
    "sk.MetropolisHastings(propose, log_proposal)": "metropolis",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of `sample` that a run is made of."""

    draws: int
    warmup: int
    chains: int
    thin: int
    keep_warmup: bool
    until: Converged | None = None

    @property
    def ticks(self) -> int:
        """Warm-up steps and draws: the clock that a run is driven by."""
        return self.warmup + self.draws

    def step_at(self, tick: int) -> int:
        """Return the absolute number of the step at which a tick begins."""
        return min(tick, self.warmup) + max(0, tick - self.warmup) * self.thin


def make_settings(**given: Any) -> Settings:
    """Check the numbers of a run and gather them."""
    for name, least in (("draws", 1), ("warmup", 0), ("chains", 1), ("thin", 1)):
        value = given[name]
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or value < least:
            wanted = "a positive integer" if least else "zero or a positive integer"
            raise SettingsError(f"{name}={value!r} is not {wanted}.")
        given[name] = int(value)
    # Keys are numbered by 32 bits; the last numbers belong to the starts.
    if given["warmup"] + given["draws"] * given["thin"] >= 2**32 - 1 - given["chains"]:
        raise SettingsError(
            f"draws={given['draws']} with thin={given['thin']} are more than 2³² steps a chain, "
            "for which there are no random numbers. Take fewer, or more chains."
        )
    until = given.get("until")
    if until is not None and not hasattr(until, "met"):
        raise SettingsError(
            f"until={until!r} is not a stop rule. Give sk.Converged(rhat=1.01, ess=400); draws= is "
            "then the most that is drawn."
        )
    if until is not None and given["chains"] < 2:
        raise SettingsError(
            "until= compares chains, but chains=1. Use at least 2 chains, better 4."
        )
    return Settings(**given)


def make_key(seed: Any) -> jax.Array:
    """Return the key of an integer seed or of a key; all noise is Threefry's."""
    if _is_seed(seed):
        return from_seed(int(seed))
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        if seed.shape != ():
            raise SettingsError(f"seed= is {seed.size} keys. Give one: the chains split it.")
        return as_threefry(seed)
    if getattr(seed, "shape", None) == (2,) and getattr(seed, "dtype", None) == np.uint32:
        return from_words(seed)
    raise SettingsError(
        f"seed={seed!r} is neither an integer nor a JAX key. Give an integer of 64 bits or "
        "jax.random.key(0)."
    )


def make_words(seed: Any) -> np.ndarray:
    """Return the two words of that key; those of an integer never go to a device."""
    if _is_seed(seed):
        return seed_words(int(seed))
    return np.array(jax.random.key_data(make_key(seed)))


def _is_seed(seed: Any) -> bool:
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    return whole and -(2**63) <= int(seed) < 2**63


def check_fit(target: Any, kernel: Any) -> None:
    """Refuse a target that lacks what the kernel needs, naming the kernels that would fit."""
    if not isinstance(target, DensityTarget | ScoreTarget | BlockTarget):
        raise KernelError(
            f"{type(target).__name__} is not a target: it has neither log_density(x) nor score(x) "
            "nor gibbs(key, x). Make one with sk.from_energy, sk.from_log_density, sk.from_score "
            "or sk.from_numpyro."
        )
    if isinstance(kernel, type):
        raise KernelError(f"kernel={kernel.__name__} is a class; write sk.{kernel.__name__}().")
    if not (hasattr(kernel, "init") and hasattr(kernel, "step")):
        raise KernelError(f"kernel={kernel!r} has no init and step; use one such as sk.NUTS().")
    missing = misfit(target, kernel)
    if missing:
        fitting = [text for text, home in _OFFERED.items() if not misfit(target, _load(home, text))]
        raise KernelError(
            f"{type(kernel).__name__} {missing}. Kernels that fit: "
            f"{', '.join(fitting) or 'none of ours'}."
        )
    for part in getattr(kernel, "parts", ()):
        check_fit(target, part)


def misfit(target: Any, kernel: Any) -> str:
    """Say what a kernel, or its class, lacks in a target; nothing where they fit."""
    needs = getattr(kernel, "requires", None)
    if is_discrete(target) and not getattr(kernel, "discrete", True):
        return "moves real numbers, but the positions of this target are integers or booleans"
    if not is_discrete(target) and not getattr(kernel, "continuous", True):
        return "flips integers or booleans, but the positions of this target are real numbers"
    if needs is None or isinstance(target, needs):
        return ""
    if needs is BlockTarget:
        return "needs a target that draws its own blocks, but this one has no gibbs(key, x)"
    if needs is DensityTarget:
        has = "a score" if isinstance(target, ScoreTarget) else "gibbs(key, x)"
        return f"needs a log density, but this target has only {has}"
    if needs is ScoreTarget:
        return "needs a score, but this target has none"
    return f"needs a target with {needs.__name__}'s methods"


def is_discrete(target: Any) -> bool:
    """Tell whether a target says that its positions are integers or booleans."""
    return bool(getattr(getattr(target, "space", None), "discrete", False))


def _load(module: str, text: str) -> type:
    home = importlib.import_module(f"samplekit.kernels.{module}")
    return getattr(home, text.removeprefix("sk.").split("(")[0])


def describe_kernel(kernel: Any) -> dict[str, Any]:
    """Return the kernel's class and fixed settings as plain JSON."""
    fixed = {}
    for field in dataclasses.fields(kernel) if dataclasses.is_dataclass(kernel) else ():
        if field.metadata.get("static"):
            value = getattr(kernel, field.name)
            fixed[field.name] = value if isinstance(value, bool | int | float | str) else None
    metric = getattr(kernel, "metric", None)
    parts = zip(getattr(kernel, "parts", ()), getattr(kernel, "tuned", ()), strict=True)
    return {
        "name": type(kernel).__name__,
        "settings": fixed,
        "metric": type(metric).__name__,
        "always_dense": bool(getattr(metric, "always", False)),
        "exact": bool(getattr(kernel, "exact", True)),
        "parts": [describe_kernel(part) | {"tunes": tunes} for part, tunes in parts],
    }


def default_kernel(target: Any) -> Base:
    """Return the kernel that a target gets when the user names none."""
    smooth = isinstance(target, DensityTarget | ScoreTarget) and not is_discrete(target)
    if isinstance(target, BlockTarget) and not smooth:
        from samplekit.kernels.gibbs import Gibbs

        return Gibbs()
    if is_discrete(target):
        from samplekit.kernels.discrete import GibbsWithGradients

        return GibbsWithGradients()
    if isinstance(target, DensityTarget):
        # More often right than NUTS, and faster, over targets with known answers: the README's
        # table "Which kernel", made by `python -m tests.bench --only choice`.
        from samplekit.kernels.hamiltonian import HMC

        return HMC()
    from samplekit.kernels.score_mala import ScoreMALA

    return ScoreMALA()


def names(values: Sequence[str]) -> str:
    """Join names for a message."""
    return ", ".join(repr(v) for v in values)
