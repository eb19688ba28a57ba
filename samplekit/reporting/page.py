"""The page: every section in its place, with style and script inside."""

from importlib import resources
from typing import TYPE_CHECKING, Any

from samplekit.diagnostics.check_draws import ess_wanted
from samplekit.reporting.made import made, onward, title_of
from samplekit.reporting.markup import Markup, element, join
from samplekit.reporting.plots import whole_run, worst_scalars
from samplekit.reporting.table import table
from samplekit.reporting.verdict import findings, verdict

if TYPE_CHECKING:
    from samplekit.diagnostics.evidence import Evidence
    from samplekit.diagnostics.findings import Diagnosis

# Nothing may be fetched, whatever a name contains: the browser itself refuses.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_NAMES = {
    "findings": "Findings",
    "whole": "The run",
    "plots": "Worst scalars",
    "table": "All scalars",
    "made": "How it was made",
    "continue": "Continue",
}


def page(
    evidence: "Evidence", diagnosis: "Diagnosis", *, target: Any = None, source: str | None = None
) -> str:
    """Return the whole page as text.

    Parameters
    ----------
    evidence
        The run, opened.
    diagnosis
        What was found in it.
    target
        The target, for its picture.
    source
        The path of the run, None for one in memory.
    """
    sections = {
        "findings": findings(diagnosis),
        "plots": worst_scalars(diagnosis, evidence, ess_wanted(evidence.chains)),
        "whole": whole_run(evidence, target),
        "table": table(diagnosis),
        "made": made(diagnosis, evidence, source),
        "continue": onward(evidence, source),
    }
    links = [element("a", _NAMES[name], href=f"#{name}") for name, part in sections.items() if part]
    toggle = element("button", "Dark", type="button", id="theme", class_="js", aria_pressed="false")
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        Markup('<link rel="icon" href="data:,">'),
        element("title", title_of(diagnosis, source)),
        element("style", _asset("style.css")),
    )
    body = element(
        "body",
        Markup('<a class="skip" href="#verdict">Skip to the verdict</a>'),
        element(
            "header",
            element("b", "samplekit"),
            element("nav", *links, aria_label="Sections"),
            toggle,
        ),
        element("main", verdict(diagnosis, evidence), *sections.values()),
        element("script", _asset("script.js")),
    )
    return join([Markup("<!DOCTYPE html>\n"), element("html", head, body, lang="en"), "\n"])


def _asset(name: str) -> Markup:
    """Return a file of this package."""
    return Markup(resources.files("samplekit.reporting").joinpath(name).read_text(encoding="utf-8"))
