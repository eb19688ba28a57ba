"""What `samplekit info` tells of a stored run."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from samplekit.cli.output import command, human_bytes, size_on_disk
from samplekit.core.errors import SettingsError

if TYPE_CHECKING:
    import xarray as xr
    from rich.console import Console


def describe(path: Path) -> dict[str, Any]:
    """Return the facts of a run as plain values; those of the sampler only if it is ours."""
    from samplekit.diagnostics.evidence import open_run

    tree = open_run(path)
    if not tree.children:
        raise SettingsError(f"{str(path)!r} holds no groups, so it is no run. Groups are ArviZ's.")
    facts: dict[str, Any] = {
        "run": str(path),
        "format": "Zarr folder" if path.is_dir() else "netCDF file",
        "bytes": size_on_disk(path),
        "groups": list(tree.children),
        "library": None,
        "version": None,
        "created": None,
    }
    places = [tree.attrs, *(tree[name].attrs for name in tree.children)]
    for key, attribute in (
        ("library", "inference_library"),
        ("version", "inference_library_version"),
        ("created", "created_at"),
    ):
        facts[key] = next((str(a[attribute]) for a in places if attribute in a), None)
    if "posterior" in tree.children:
        data = tree["posterior"].to_dataset()
        facts |= {"chains": data.sizes.get("chain", 1), "draws": data.sizes.get("draw", 0)}
        facts["variables"] = {str(n): list(v.shape[2:]) for n, v in data.data_vars.items()}
    if "sampler" in tree.children and "schema" in tree["sampler"].attrs:
        facts |= _sampler_facts(tree)
    return facts


def _sampler_facts(tree: "xr.DataTree") -> dict[str, Any]:
    """Return what the checkpoint of a run of ours knows."""
    from samplekit.reporting.made import seed_of
    from samplekit.sampling.run import sampler_state

    arrays, attrs = sampler_state(tree)
    kernel = attrs["kernel"]
    steps = np.ravel(arrays.get("kernel.step_size", np.zeros(0)))
    done = max(0, int(attrs["tick"]) - int(attrs["warmup"]))
    finished, interrupted = bool(attrs["finished"]), bool(attrs["interrupted"])
    state = "finished" if finished else "interrupted" if interrupted else "unfinished"
    return {
        "kernel": kernel["name"],
        "settings": {k: v for k, v in kernel["settings"].items() if v is not None},
        "metric": kernel["metric"],
        "exact": kernel["exact"],
        "tuned": bool(attrs["tunes"]["step"] or attrs["tunes"]["metric"]),
        "step_sizes": [float(f"{step:.6g}") for step in steps],
        "state": state,
        "draws": done,
        "draws_asked": int(attrs["draws"]),
        "warmup": int(attrs["warmup"]),
        "warmup_done": min(int(attrs["tick"]), int(attrs["warmup"])),
        "thin": int(attrs["thin"]),
        "until": attrs["until"],
        "restarts": attrs["restarts"],
        "dimension": int(attrs["dim"]),
        "dtype": attrs["dtype"],
        "seed": seed_of(arrays["key"], attrs["key_impl"]),
        "jax_version": attrs.get("jax_version"),
        "seconds": attrs["seconds"],
    }


def print_info(screen: "Console", facts: dict[str, Any]) -> None:
    """Print the facts, one a line, and what can be done with the run."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _lines(facts):
        table.add_row(name, Text(text))
    screen.print(table, soft_wrap=False, crop=False)


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    maker = " ".join(filter(None, [facts["library"], facts["version"]])) or "an unknown library"
    when = f", {facts['created'][:19].replace('T', ' ')}" if facts["created"] else ""
    lines = [
        ("run", f"{facts['run']}  ({facts['format']}, {human_bytes(facts['bytes'])} on disk)"),
        ("made by", maker + when),
    ]
    if "kernel" in facts:
        lines += _sampler_lines(facts)
    elif "draws" in facts:
        lines.append(("draws", f"{facts['chains']} chains × {facts['draws']:,}"))
    shapes = [f"{n}{s or ''}" for n, s in facts.get("variables", {}).items()]
    more = f" and {len(shapes) - 12} more" if len(shapes) > 12 else ""
    lines.append(("variables", (", ".join(shapes[:12]) or "none") + more))
    lines.append(("groups", ", ".join(facts["groups"])))
    return lines + _next_steps(facts)


def _sampler_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    given = [f"{name}={value}" for name, value in facts["settings"].items()]
    given += [] if facts["metric"] == "NoneType" else [f"metric={facts['metric'].lower()}"]
    lines = [
        ("kernel", f"{facts['kernel']}({', '.join(given)})"),
        ("state", _state(facts)),
        ("draws", _draws(facts)),
        ("dimension", f"{facts['dimension']}, {facts['dtype']}"),
        ("seed", facts["seed"] + (f", JAX {jax}" if (jax := facts["jax_version"]) else "")),
    ]
    if steps := facts["step_sizes"]:
        low, middle, high = min(steps), float(np.median(steps)), max(steps)
        spread = f" (chains: {low:.3g} to {high:.3g})" if low < high else ""
        how = "tuned" if facts["tuned"] else "given"
        lines.insert(1, ("step size", f"{middle:.3g} {how}{spread}"))
    if facts["restarts"]:
        lost = ", ".join(f"chain {r['chain']} at step {r['step']}" for r in facts["restarts"])
        lines.append(("restarted", lost))
    parts = [f"{name} {value:.3g}" for name, value in facts["seconds"].items()]
    return [*lines, ("seconds", ", ".join(parts) or "none yet")]


def _state(facts: dict[str, Any]) -> str:
    if facts["state"] == "finished":
        return "finished"
    share = f"{facts['draws']:,} of {facts['draws_asked']:,} draws"
    if facts["warmup_done"] < facts["warmup"]:
        share = f"{facts['warmup_done']:,} of {facts['warmup']:,} warm-up steps"
    why = {"interrupted": "interrupted", "unfinished": "not finished: still running, or killed"}
    return f"{why[facts['state']]} after {share}"


def _draws(facts: dict[str, Any]) -> str:
    text = f"{facts['chains']} chains × {facts['draws']:,} after {facts['warmup']:,} of warm-up"
    if facts["thin"] > 1:
        text += f", one every {facts['thin']} steps"
    if until := facts["until"]:
        text += f", until R-hat < {until['rhat']} and ESS ≥ {until['ess']}"
    return text


def _next_steps(facts: dict[str, Any]) -> list[tuple[str, str]]:
    run = facts["run"]
    drawn = facts.get("draws", 0)
    steps = [("judge", command("diagnose", run)), ("look", command("report", run))] if drawn else []
    if "kernel" in facts and facts["format"] == "Zarr folder":
        more = ["--draws", 1000] if facts["state"] == "finished" else []
        steps.append(("go on", command("resume", run, "MODEL", *more)))
    return steps
