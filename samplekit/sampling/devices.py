"""Which devices to use, and rows dealt to them."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
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
        homes = by_process(jax.devices())
        least = min(map(len, homes))
        if not 1 <= devices <= least:
            raise SettingsError(f"devices={devices!r} is not a number from 1 to {least}.")
        return [d for own in homes for d in own[: int(devices)]]
    some: Any = devices if isinstance(devices, Sequence) else ()
    if not some or not all(hasattr(d, "platform") for d in some):
        raise SettingsError(
            f"devices={devices!r} is not a list of devices, nor a number or a mesh. Give some of "
            "jax.devices(), or None for all of them."
        )
    return list(some)


def row_mesh(devices: Sequence[Any] | None, count: int) -> Mesh | None:
    """Return a mesh of as many devices as divide so many rows; None to let JAX place them."""
    homes = by_process(devices or jax.local_devices())
    least = min(map(len, homes))
    fitting = [n for n in range(1, least + 1) if count % (n * len(homes)) == 0]
    if not fitting:
        raise SettingsError(
            f"{count} rows at a time cannot be shared equally by {len(homes)} processes. Take a "
            "multiple of their number."
        )
    most = max(fitting)
    if most == len(homes) == 1 and devices is None:
        return None
    return Mesh(np.asarray([d for own in homes for d in own[:most]]), (ROWS,))


def by_process(devices: Iterable[Any]) -> list[list[Any]]:
    """Return the devices of each process."""
    homes: dict[int, list[Any]] = {}
    for device in devices:
        homes.setdefault(device.process_index, []).append(device)
    return [own for _, own in sorted(homes.items())]


def row_sharding(mesh: Mesh, *, axis: int | None = 0) -> NamedSharding:
    """Return how arrays lie on a mesh whose devices share an axis; None puts all on each."""
    spec = PartitionSpec() if axis is None else PartitionSpec(*(None,) * axis, ROWS)
    return NamedSharding(mesh, spec)


def deal(tree: Any, mesh: Mesh | None, *, axis: int | None = 0) -> Any:
    """Return arrays, equal in all processes, dealt along an axis; None puts all on each device."""
    if mesh is None:
        return tree
    sharding = row_sharding(mesh, axis=axis)
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)
    return jax.tree.map(lambda leaf: put(leaf, sharding), tree)


def put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """Return an array, equal in all processes, on the devices of them all."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = put(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    host = np.asarray(leaf, jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype))
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


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
