"""Which scalars to show first, and their draws."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from samplekit.diagnostics.evidence import Evidence
    from samplekit.diagnostics.findings import Diagnosis

_RANK = {"problem": 0, "warning": 1, "note": 2}


def flags(diagnosis: "Diagnosis") -> dict[str, list[tuple[str, str]]]:
    """Return the severity and code of every finding that names a scalar, by its label."""
    found: dict[str, list[tuple[str, str]]] = {}
    for finding in diagnosis.findings:
        for label in finding.variables:
            found.setdefault(label, []).append((finding.severity, finding.code))
    return found


def worst_first(diagnosis: "Diagnosis") -> np.ndarray:
    """Return the rows of the table, worst first.

    Scalars that a problem names come first, then those of warnings, then the others; within each,
    undefined numbers first, then the fewest effective draws. Constants that nobody blames, such as
    the diagonal of a correlation matrix, come last.
    """
    table, named = diagnosis.table, flags(diagnosis)
    blamed = np.array(
        [min((_RANK[s] for s, _ in named.get(str(label), ())), default=3) for label in table.index]
    )
    numbers = table[["ess_bulk", "ess_tail"]].to_numpy(float)
    least = np.where(np.isnan(numbers).any(axis=1), -np.inf, numbers.min(axis=1))
    constant = (blamed == 3) & (table["sd"].to_numpy(float) == 0)
    return np.lexsort([np.arange(len(table)), least, blamed + constant])


def draws_of(evidence: "Evidence", place: int) -> np.ndarray:
    """Return the draws (chain, draw) of the scalar at a place among `evidence.names`."""
    for values in evidence.variables.values():
        flat = values.reshape(*values.shape[:2], -1)
        if place < flat.shape[2]:
            return np.asarray(flat[:, :, place], np.float64)
        place -= flat.shape[2]
    raise IndexError("the run has fewer scalars")
