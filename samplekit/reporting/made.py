"""The foot of the page: how the run was made, and code to go on with it."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from samplekit.diagnostics.origin import read_checkpoint
from samplekit.reporting.markup import Markup, element, escape, join
from samplekit.reporting.numbers import count, duration, short

if TYPE_CHECKING:
    import xarray as xr

    from samplekit.diagnostics.evidence import Evidence
    from samplekit.diagnostics.findings import Diagnosis

type Rows = list[tuple[str, Any]]


def source_of(run: Any, tree: "xr.DataTree") -> str | None:
    """Return the path that a run was given by or read from, None for one in memory."""
    if isinstance(run, str | os.PathLike):
        return os.fspath(run)
    places = [tree.encoding, *(child.encoding for child in tree.children.values())]
    found = [str(place["source"]) for place in places if place.get("source")]
    return found[0] if found and Path(found[0]).exists() else None


def own_checkpoint(tree: "xr.DataTree") -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return arrays and attributes of our own sampler; empty for runs of others."""
    arrays, attrs = read_checkpoint(tree)
    ours = "schema" in attrs and isinstance(attrs.get("kernel"), dict)
    return (arrays, attrs) if ours else ({}, {})


def made(diagnosis: "Diagnosis", evidence: "Evidence", source: str | None) -> Markup:
    """Return what is known of the making of a run; what is unknown is left out."""
    arrays, attrs = own_checkpoint(evidence.tree)
    groups = [
        ("Sampler", _sampler(diagnosis, evidence, arrays, attrs)),
        ("Length", _length(diagnosis, evidence, attrs)),
        ("Cost", _cost(diagnosis, attrs)),
        ("Origin", _origin(evidence, arrays, attrs, source)),
    ]
    boxes = [
        element(
            "div",
            element("h3", title),
            element("dl", *(element("div", element("dt", k), element("dd", v)) for k, v in rows)),
        )
        for title, rows in groups
        if rows
    ]
    return element(
        "section",
        element("h2", "How it was made"),
        element("div", *boxes, class_="made"),
        id="made",
    )


def _sampler(
    diagnosis: "Diagnosis",
    evidence: "Evidence",
    arrays: dict[str, np.ndarray],
    attrs: dict[str, Any],
) -> Rows:
    sampler = diagnosis.sampler
    tunes = attrs.get("tunes") or {}
    rows: Rows = []
    if sampler.name:
        given = ", ".join(f"{k}={v!r}" for k, v in sampler.settings.items() if v is not None)
        rows.append(("kernel", element("code", f"{sampler.name}({given})")))
    if sampler.adjusted is not None:
        exact = "exact" if sampler.adjusted else "approximate: no exact Metropolis step"
        rows.append(("draws are", exact))
    steps = arrays.get("kernel.step_size")
    if steps is None and sampler.step_size is not None:
        steps = np.array([sampler.step_size])
    if steps is not None:
        how = (", tuned in warm-up" if tunes["step"] else ", as given") if "step" in tunes else ""
        rows.append(("step size", f"{_range(steps)}{how}"))
    kernel = attrs.get("kernel") or {}
    if kernel.get("metric") not in (None, "NoneType"):
        how = ", learned in warm-up" if tunes.get("metric") else ""
        rows.append(("metric", f"{_spaced(kernel['metric'])}{how}"))
    scale = arrays.get("kernel.metric.scale")
    if scale is not None and scale.size:
        rows.append(("scales of the metric", _ends(scale)))
    for name, values in arrays.items():
        part = name.removeprefix("kernel.")
        extra = part != name and "." not in part and part not in ("step_size", "learning")
        if extra and values.ndim <= 1 and values.dtype.kind in "iuf":
            rows.append((part.replace("_", " "), _range(values)))
    rate = evidence.stats.get("acceptance_rate")
    if rate is not None and rate.size:
        goal = sampler.target_accept
        aim = f", goal {goal:.3g}" if goal is not None else ""
        rows.append(("mean acceptance", f"{np.mean(rate, dtype=np.float64):.3f}{aim}"))
    if "tree_depth" in evidence.stats:
        rows.append(("deepest tree", f"{int(np.max(evidence.stats['tree_depth']))}"))
    return rows


def _spaced(name: str) -> str:
    """Return a class name as words: LowRank, low rank."""
    return "".join(f" {c.lower()}" if c.isupper() else c for c in str(name)).strip()


def _range(values: np.ndarray) -> str:
    """Return one number, or the median and the ends over the chains."""
    flat = np.asarray(values, np.float64).ravel()
    if not flat.size or np.all(flat == flat[0]):
        return short(float(flat[0])) if flat.size else "none"
    ends = f"{short(float(flat.min()))} to {short(float(flat.max()))}"
    return f"{short(float(np.median(flat)))} ({ends} over chains)"


def _ends(values: np.ndarray) -> str:
    return f"{short(float(np.min(values)))} to {short(float(np.max(values)))}"


def _length(diagnosis: "Diagnosis", evidence: "Evidence", attrs: dict[str, Any]) -> Rows:
    rows: Rows = [
        ("chains", f"{diagnosis.chains:,}"),
        ("draws", f"{diagnosis.draws:,} a chain, {diagnosis.chains * diagnosis.draws:,} in all"),
    ]
    warmup = attrs.get("warmup", _attribute(evidence, "tuning_steps"))
    if warmup is not None:
        rows.append(("warm-up", f"{count(int(warmup), 'step')} a chain"))
    if int(attrs.get("thin", 1)) > 1:
        rows.append(("thinning", f"every {attrs['thin']}th step is a draw"))
    asked = attrs.get("draws")
    if asked is not None and int(asked) > diagnosis.draws:
        rows.append(("asked for", f"{count(int(asked), 'draw')} a chain: not finished yet"))
    if attrs.get("until"):
        rule = ", ".join(f"{k}={v}" for k, v in attrs["until"].items())
        rows.append(("stop rule", element("code", f"Converged({rule})")))
    if attrs.get("restarts"):
        rows.append(("restarted chains", f"{len(attrs['restarts'])} in warm-up"))
    rows.append(
        ("scalars", f"{len(diagnosis.table):,} in {count(len(evidence.variables), 'variable')}")
    )
    return rows


def _cost(diagnosis: "Diagnosis", attrs: dict[str, Any]) -> Rows:
    seconds, found = attrs.get("seconds"), diagnosis.efficiency
    rows: Rows = []
    if isinstance(seconds, dict):
        rows += [(str(what), duration(float(s))) for what, s in seconds.items()]
    elif found.get("seconds") is not None:
        rows.append(("sampling", duration(float(found["seconds"] or 0.0))))
    named = (
        ("ess_min", "smallest ESS", short),
        ("ess_per_second", "ESS per second", short),
        ("evaluations", "evaluations", short),
        ("ess_per_evaluation", "ESS per 1,000 evaluations", lambda v: short(1000 * v)),
        ("seconds_to_next_100", "100 more effective draws", lambda v: f"about {duration(v)}"),
    )
    for key, words, shown in named:
        value = found.get(key)
        if value is not None and math.isfinite(value):
            rows.append((words, shown(float(value))))
    return rows


def _origin(
    evidence: "Evidence",
    arrays: dict[str, np.ndarray],
    attrs: dict[str, Any],
    source: str | None,
) -> Rows:
    from importlib.metadata import version

    rows: Rows = []
    library, number = (_attribute(evidence, f"inference_library{s}") for s in ("", "_version"))
    if library is not None:
        rows.append(("library", f"{library} {number or ''}".strip()))
    for key, words in (
        ("arviz_version", "ArviZ, when stored"),
        ("created_at", "created"),
        ("hardware", "hardware"),
    ):
        value = _attribute(evidence, key)
        if value is not None:
            rows.append(
                (words, str(value)[:19].replace("T", " ") if key == "created_at" else value)
            )
    if "key" in arrays:
        rows.append(("seed", seed_of(arrays["key"], str(attrs.get("key_impl", "")))))
    if "dtype" in attrs:
        rows.append(("precision", attrs["dtype"]))
    if "jax_version" in attrs:
        rows.append(("JAX", attrs["jax_version"]))
    rows.append(("read from", element("span", source, class_="name") if source else "memory"))
    rows.append(("this page", f"samplekit {version('samplekit')}, ArviZ {version('arviz')}"))
    return rows


def seed_of(key: np.ndarray, implementation: str) -> str:
    """Return the seed that gives this JAX key, or the key itself.

    Examples
    --------
    >>> seed_of(np.array([0, 7], np.uint32), "threefry2x32")
    '7'
    """
    words = [int(word) for word in np.ravel(key)]
    if "threefry" in implementation and len(words) == 2 and words[0] == 0:
        return str(words[1])
    return f"key {words}"


def _attribute(evidence: "Evidence", name: str) -> Any:
    """Return an attribute of the run, wherever it is written."""
    tree = evidence.tree
    groups = [tree[g].attrs for g in ("posterior", "sample_stats") if g in tree.children]
    return next((a[name] for a in [tree.attrs, *groups] if name in a), None)


def onward(evidence: "Evidence", source: str | None) -> Markup:
    """Return code to load, continue and reuse the run."""
    arrays, attrs = own_checkpoint(evidence.tree)
    blocks = [("Look at it again", _loading(source))]
    if attrs:
        more = max(1, int(attrs.get("draws", evidence.draws)))
        seed = seed_of(arrays["key"], str(attrs.get("key_impl", "")))
        other = int(seed) + 1 if seed.isdigit() else 1
        where = repr(source) if source and Path(source).is_dir() else "run"
        blocks.append(
            (
                "Draw more, from where the chains stand",
                f"target = ...  # the target that the run was made with\n"
                f"longer = sk.resume({where}, target, draws={more})\n"
                f'sk.report(longer, "longer.html", target=target)',
            )
        )
        blocks.append(
            (
                "Start again with the tuned kernel",
                "kernel = sk.kernel_of(run)\n"
                f"again = sk.sample(target, kernel, warmup=0, draws={more}, seed={other})",
            )
        )
    parts = [
        element(
            "div",
            element("h3", title),
            element("div", element("pre", element("code", code)), _COPY, class_="copy"),
        )
        for title, code in blocks
    ]
    return element("section", element("h2", "Continue"), *parts, id="continue")


_COPY = Markup('<button type="button" class="js">Copy</button>')


def _loading(source: str | None) -> str:
    lines = ["import samplekit as sk"]
    if source is None:
        lines.append('# `run` is the DataTree in memory; keep it: run.to_netcdf("run.nc")')
    else:
        reader = "from_zarr" if Path(source).is_dir() else "from_netcdf"
        lines = ["import arviz as az", *lines, "", f"run = az.{reader}({source!r})"]
    return "\n".join([*lines, "print(sk.diagnose(run))"])


def title_of(diagnosis: "Diagnosis", source: str | None) -> Markup:
    """Return the title of the page."""
    parts = [Path(source).name if source else "", diagnosis.sampler.name or "", "samplekit report"]
    return join([escape(part) for part in parts if part], " · ")
