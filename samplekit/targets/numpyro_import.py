"""Import NumPyro whole, whatever was imported before it.

ArviZ puts a lazy stand-in for NumPyro into `sys.modules`. When its submodules are imported before
the package itself, the package runs twice and its namespace loses them: `numpyro.distributions`
then has no attribute `distribution`, which NumPyro's own code uses.
"""

import importlib
import sys


def mend_numpyro() -> None:
    """Import NumPyro, and put every loaded submodule back where its parent lost it."""
    for package in ("numpyro", "numpyro.distributions", "numpyro.infer"):
        importlib.import_module(package)
    for name, module in list(sys.modules.items()):
        parent, _, child = name.rpartition(".")
        if parent == "numpyro" or parent.startswith("numpyro."):
            owner = sys.modules.get(parent)
            if owner is not None and not hasattr(owner, child):
                setattr(owner, child, module)
