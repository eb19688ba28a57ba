"""The table of all scalars: plain rows that a script may sort and filter."""

from typing import TYPE_CHECKING

import numpy as np

from samplekit.reporting.choose import flags, worst_first
from samplekit.reporting.markup import Markup, element, escape, join
from samplekit.reporting.numbers import decimals_for, fixed

if TYPE_CHECKING:
    from samplekit.diagnostics.findings import Diagnosis

# Rows beyond this many make a page slow to open; the worst are kept.
MOST_ROWS = 20_000
# Rows that are shown at once.
FEW_ROWS = 100

# Column of the diagnosis, its head, and what it means.
COLUMNS = (
    ("mean", "mean", "mean of the draws"),
    ("mcse_mean", "± MCSE", "Monte Carlo standard error of the mean"),
    ("sd", "sd", "standard deviation of the draws"),
    ("q5", "5 %", "5 % quantile"),
    ("median", "median", "median"),
    ("q95", "95 %", "95 % quantile"),
    ("ess_bulk", "bulk ESS", "effective draws for means and medians"),
    ("ess_tail", "tail ESS", "effective draws for the 5 % and 95 % quantiles"),
    ("r_hat", "R-hat", "agreement of the chains; 1.00 is best"),
)


def table(diagnosis: "Diagnosis") -> Markup:
    """Return the section with the table, worst scalars first."""
    order = worst_first(diagnosis)
    left_out = max(0, order.size - MOST_ROWS)
    order = order[:MOST_ROWS]
    note = f" The {left_out:,} best scalars are left out." if left_out else ""
    sorter = element(
        "div",
        element("label", "Filter by name", for_="filter"),
        element("input", id="filter", type="search", autocomplete="off", spellcheck="false"),
        element("button", "Worst first", type="button", id="worst"),
        element("output", id="shown", aria_live="polite"),
        class_="tools js",
    )
    rows = _rows(diagnosis, order)
    body = element("tbody", Markup("\n" + "\n".join(rows[:FEW_ROWS]) + "\n"))
    # The others wait in a template: the browser reads them, but lays out only what is asked for.
    rest = element("template", Markup("\n".join(rows[FEW_ROWS:])), id="rest")
    few = f" Without scripts, the {FEW_ROWS} worst are shown." if len(rows) > FEW_ROWS else ""
    heads = [
        _head("scalar", "name", "label of the scalar"),
        *(_head(h, c, m) for c, h, m in COLUMNS),
    ]
    whole = element("table", element("thead", element("tr", *heads)), body, id="scalars")
    return element(
        "section",
        element("h2", "All scalars"),
        element("p", f"Worst first. Click a heading to sort.{note}", class_="hint"),
        sorter,
        element(
            "div", whole, class_="scroll", tabindex="0", role="region", aria_label="All scalars"
        ),
        rest,
        element("noscript", element("p", few, class_="hint")),
        element("button", "Show all rows", type="button", id="more", class_="js", hidden=True),
        id="table",
    )


def _head(words: str, column: str, meaning: str) -> Markup:
    button = element(
        "button", words, element("i", aria_hidden="true"), type="button", title=meaning
    )
    return element("th", button, scope="col", data_column=column)


def _rows(diagnosis: "Diagnosis", order: np.ndarray) -> list[str]:
    """Return a line of markup a scalar, without the tags that HTML lets us leave out."""
    named = flags(diagnosis)
    labels = [str(label) for label in diagnosis.table.index]
    columns = {name: diagnosis.table[name].to_numpy(float) for name, _, _ in COLUMNS}
    rows = []
    for place in order.tolist():
        values = {name: float(column[place]) for name, column in columns.items()}
        cells = "".join(f"<td>{cell}" for cell in row(values))
        label = labels[place]
        mark = _mark(named.get(label, []))
        rows.append(f'<tr><th scope="row">{mark}<span class="name">{escape(label)}</span>{cells}')
    return rows


def row(values: dict[str, float]) -> list[str]:
    """Return the cells of a scalar: three digits of its spread, two of its error."""
    places = decimals_for(values["sd"] if values["sd"] > 0 else abs(values["mean"]))
    error = max(places, decimals_for(values["mcse_mean"], 2))
    digits = {"mcse_mean": min(error, 7), "ess_bulk": 0, "ess_tail": 0, "r_hat": 3}
    return [fixed(values[name], digits.get(name, places)) for name, _, _ in COLUMNS]


def _mark(found: list[tuple[str, str]]) -> Markup:
    """Return a link to the worst finding that names the scalar."""
    if not found:
        return Markup("")
    severity, code = found[0]
    codes = ", ".join(dict.fromkeys(code for _, code in found))
    sign = {"problem": "✕", "warning": "!", "note": "i"}[severity]
    said = f"{severity}: {codes}"
    return join(
        [
            element(
                "a",
                sign,
                href=f"#finding-{code}",
                class_=f"flag {severity}",
                title=said,
                aria_label=said,
            )
        ]
    )
