"""Programs that run long, compiled with what XLA should know of this machine."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

WIDE = {"xla_cpu_prefer_vector_width": "512"}
# Products of matrices in XLA's own code, not by its library YNNPACK.
OWN_PRODUCTS = {"xla_cpu_experimental_ynn_fusion_type": ""}
# Processors have it since Ice Lake and Zen 4. Older ones slow their clock for vectors of 512 bits.
WIDE_AND_FAST = "avx512_vbmi2"


class Compiled:
    """A function as `jax.jit` makes it, with options for this machine; never inside another one.

    XLA takes vectors of 256 bits even where the processor has 512, because old ones slow down.
    With 512, on a Zen 5, 16,384 chains took 0.56 to 0.9 times as long, NUTS on a regression 0.74
    times, an epoch of a Boltzmann machine 0.75 to 0.99 times; small targets as long as before.

    Options are asked for when the program is first called, for JAX knows the device only then.

    Parameters
    ----------
    function
        What is compiled.
    own_products
        Let XLA compile products of matrices itself rather than call its library.
    **settings
        For `jax.jit`.

    Examples
    --------
    >>> double = Compiled(lambda x: 2 * x)
    >>> int(double(21))
    42
    """

    def __init__(
        self, function: Callable[..., Any], *, own_products: bool = False, **settings: Any
    ) -> None:
        functools.update_wrapper(self, function)
        self.function, self.settings = function, settings
        self.own_products = own_products

    @functools.cached_property
    def jitted(self) -> Any:
        """The function as `jax.jit` gives it."""
        options = _options(own_products=self.own_products)
        return jax.jit(self.function, compiler_options=options, **self.settings)

    def __call__(self, *args: Any) -> Any:
        """Run the program."""
        return self.jitted(*args)

    def lower(self, *args: Any) -> Any:
        """Return the program for arguments like these, before it is compiled."""
        return self.jitted.lower(*args)


def compiled(**settings: Any) -> Callable[[Callable[..., Any]], Compiled]:
    """Return a decorator that makes a `Compiled`."""
    return functools.partial(Compiled, **settings)


@functools.cache
def _options(*, own_products: bool) -> dict[str, str] | None:
    """Return options for XLA, those of them that it knows."""
    if jax.default_backend() != "cpu":
        return None
    wanted = (WIDE if has_fast_wide_vectors() else {}) | (OWN_PRODUCTS if own_products else {})
    if not wanted or _knows(wanted):
        return wanted or None
    return {k: v for k, v in wanted.items() if _knows({k: v})} or None


def _knows(options: dict[str, str]) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def has_fast_wide_vectors(cpuinfo: str = "/proc/cpuinfo") -> bool:
    """Say whether this processor has vectors of 512 bits and keeps its clock with them.

    Examples
    --------
    >>> has_fast_wide_vectors("/no/such/file")  # not Linux: left to XLA
    False
    """
    try:
        with Path(cpuinfo).open() as lines:  # the first core's; to read all of them takes long
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return False
    return WIDE_AND_FAST in flags.split()
