"""Which devices to use, and rows dealt to them."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from samplekit.core.errors import SettingsError

ROWS = "rows"
_ALIGNED = 64  # bytes: where XLA wants arrays to begin


def read_devices(devices: Any) -> list[Any] | None:
    """Return the devices that a user names by a number, a list or a mesh; None for all.

    Parameters
    ----------
    devices
        A number takes so many, of every process; a mesh stands for all of its devices.

    Examples
    --------
    >>> import jax
    >>> read_devices(1) == jax.devices()[:1]
    True
    """
    if devices is None:
        return None
    if isinstance(devices, Mesh):
        return list(devices.devices.flat)
    if isinstance(devices, int | np.integer) and not isinstance(devices, bool):
        homes: dict[int, list[Any]] = {}
        for device in jax.devices():
            homes.setdefault(device.process_index, []).append(device)
        least = min(map(len, homes.values()))
        if not 1 <= devices <= least:
            raise SettingsError(f"devices={devices!r} is not a number from 1 to {least}.")
        return [d for _, own in sorted(homes.items()) for d in own[: int(devices)]]
    some: Any = devices if isinstance(devices, Sequence) else ()
    if not some or not all(hasattr(d, "platform") for d in some):
        raise SettingsError(
            f"devices={devices!r} is not a list of devices, nor a number or a mesh. Give some of "
            "jax.devices(), or None for all of them."
        )
    return list(some)


def row_mesh(devices: Sequence[Any] | None, count: int) -> Mesh | None:
    """Return a mesh of as many devices as divide so many rows; None to let JAX place them."""
    chosen = list(devices or jax.local_devices())
    most = max(n for n in range(1, len(chosen) + 1) if count % n == 0)
    if most == 1 and devices is None:
        return None
    return Mesh(np.asarray(chosen[:most]), (ROWS,))


def row_sharding(mesh: Mesh, *, axis: int | None = 0) -> NamedSharding:
    """Return how arrays lie on a mesh whose devices share an axis; None puts all on each."""
    spec = PartitionSpec() if axis is None else PartitionSpec(*(None,) * axis, ROWS)
    return NamedSharding(mesh, spec)


def deal(tree: Any, mesh: Mesh | None, *, axis: int | None = 0) -> Any:
    """Return arrays dealt to the devices of a mesh along an axis; None puts all on each."""
    return tree if mesh is None else jax.device_put(tree, row_sharding(mesh, axis=axis))


def take_rows(array: Any, order: np.ndarray) -> jax.Array:
    """Return rows of an array in a given order, copied once.

    JAX takes over memory that lies as its own does; anything else it would copy again, for longer
    than an epoch of a small model.

    Examples
    --------
    >>> import numpy as np
    >>> take_rows(np.asarray([[1.0], [2.0]], np.float32), np.asarray([1, 0, 1])).tolist()
    [[2.0], [1.0], [2.0]]
    """
    source = np.asarray(array)
    shape = (len(order), *source.shape[1:])
    size = math.prod(shape) * source.itemsize
    raw = np.empty(size + _ALIGNED, np.uint8)
    begin = -raw.ctypes.data % _ALIGNED
    rows = raw[begin : begin + size].view(source.dtype).reshape(shape)
    np.take(source, order, axis=0, out=rows, mode="clip")  # "raise" would go through a copy
    return jax.device_put(rows, may_alias=True)
