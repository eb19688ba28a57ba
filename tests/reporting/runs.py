"""Runs that the tests of the report share."""

import numpy as np
import xarray as xr

SCRIPT = "<script>alert(1)</script>"
QUOTES = "\"'&<img src=x onerror=alert(2)>"


def healthy(scalars: int = 3, draws: int = 1000, chains: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {"theta": rng.normal(size=(chains, draws, scalars))}


def wicked() -> xr.DataTree:
    """Names that are markup, a walk that does not mix, divergences, energies."""
    rng = np.random.default_rng(6)
    names = [SCRIPT, QUOTES, "</title></style></script>", "\u202eevil\x07"]
    walk = rng.normal(size=(4, 300, 4)).cumsum(axis=1)
    posterior = xr.Dataset(
        {
            "a": (("chain", "draw", "b<i>"), walk),
            "onclick=x": (("chain", "draw"), np.exp(rng.normal(size=(4, 300)) * 3)),
        },
        coords={"b<i>": names},
        attrs={"inference_library": SCRIPT, "created_at": SCRIPT},
    )
    stats = xr.Dataset(
        {
            "diverging": (("chain", "draw"), rng.uniform(size=(4, 300)) < 0.05),
            "energy": (("chain", "draw"), rng.normal(size=(4, 300))),
            "tree_depth": (("chain", "draw"), np.full((4, 300), 3)),
        }
    )
    return xr.DataTree.from_dict({"posterior": posterior, "sample_stats": stats})
