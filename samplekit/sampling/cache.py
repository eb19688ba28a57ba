"""The persistent compilation cache: the one place where JAX's configuration is touched."""

import hashlib
import os
import platform
from pathlib import Path

import jax


def cache_folder() -> Path:
    """Return the user's cache folder for compiled programs.

    Its name carries JAX's version and the processor's features: a program compiled for other
    features may crash.
    """
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "samplekit" / f"jax-{jax.__version__}-{_processor()}"


def _processor() -> str:
    features = platform.machine() + platform.processor()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features", "model name")):
                features += line
            elif not line and "flags" in features:
                break
    except OSError:
        pass  # not Linux: the machine's name has to do
    return hashlib.sha256(features.encode()).hexdigest()[:12]


def use_cache() -> None:
    """Turn the cache on unless the user has set one, or turned it off, in JAX or the environment.

    Programs that compile in less than a tenth of a second are not worth a file.
    """
    if (
        jax.config.jax_compilation_cache_dir is not None
        or not jax.config.jax_enable_compilation_cache
    ):
        return
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a home that cannot be written: everything works, only slower
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
