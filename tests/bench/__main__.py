"""Run the benchmarks: `python -m tests.bench [--quick] [--only cold,warm,many] ...`."""

import argparse
import os
import shutil
import sys
from pathlib import Path

from tests.bench import (
    anneal,
    boltzmann,
    choice,
    closed_form,
    cold,
    cores,
    curves,
    diagnose,
    fields,
    imports,
    learned,
    many,
    peers,
    readme,
    results,
    tempering,
    warm,
)
from tests.bench.report import Bar, Options, Section, bar_rows, number, write

WORKLOADS = {
    "import": imports.measure,
    "cold": cold.measure,
    "warm": warm.measure,
    "choice": choice.measure,
    "diagnose": diagnose.measure,
    "many": many.measure,
    "tempering": tempering.measure,
    "anneal": anneal.measure,
    "fields": fields.measure,
    "learned": learned.measure,
    "curves": curves.measure,
    "cores": cores.measure,
    **closed_form.MEASURES,
    **boltzmann.MEASURES,
}
# What --quick leaves out: each takes minutes even for one round.
SLOW = {"choice", "tempering", "stream", "curves", "diagnose", "many", "anneal", "cores"}
BESIDE_TORCH = {"many", "anneal", "learned", "boltzmann"}
BESIDE_SAMPLERS = {"warm"}


def parse() -> tuple[list[str], Options, argparse.Namespace]:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, fewer cases: a smoke test")
    parser.add_argument("--only", help="workloads, with commas")
    parser.add_argument("--rounds", type=int, help="rounds of every workload (3; --quick 1)")
    parser.add_argument("--output", type=Path, default=Path("bench-results"), metavar="DIR")
    parser.add_argument("--check", action="store_true", help="fail where a ratio got worse")
    parser.add_argument(
        "--save", action="store_true", help="commit these: tests/bench/results.json and the README"
    )
    given = parser.parse_args()
    usual = [n for n in WORKLOADS if not (given.quick and n in SLOW)]
    names = usual if given.only is None else [n.strip() for n in given.only.split(",") if n.strip()]
    unknown = sorted(set(names) - set(WORKLOADS))
    if unknown or not names:
        parser.error(f"--only takes {', '.join(WORKLOADS)}, not {', '.join(unknown) or 'nothing'}")
    rounds = given.rounds if given.rounds is not None else (1 if given.quick else 3)
    if rounds < 1:
        parser.error(f"--rounds {rounds} is not a positive integer")
    folder = given.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    wanted = set(names)
    install = not given.quick  # a smoke test takes what is there
    torch, samplers = (
        (peer.install() if install and beside & wanted else peer.ready())
        for peer, beside in ((peers.TORCH, BESIDE_TORCH), (peers.SAMPLERS, BESIDE_SAMPLERS))
    )
    return names, Options(folder, rounds, given.quick, torch, samplers), given


def measure(name: str, options: Options) -> Section:
    """Measure one workload."""
    before = os.getloadavg()[0]
    section = WORKLOADS[name](options)
    section.load = (before, os.getloadavg()[0])
    return section


def main() -> int:
    """Measure, print the bars, write the report; fail on a loss of speed if asked to."""
    names, options, given = parse()
    committed = {name: found["bars"] for name, found in results.load().items()}
    sections: dict[str, Section] = {}
    lost: list[tuple[Bar, float]] = []
    for name in names:
        known = committed.get(name, {})
        sections[name] = measure(name, options)
        if given.check and results.regressions(sections[name], known):
            print(f"{name}: worse than the committed ratios; once more.", flush=True)
            sections[name] = measure(name, options)
            lost += [(bar, known[bar.what]) for bar in results.regressions(sections[name], known)]
        write(sections, options)  # after each workload: a later failure loses nothing
        if given.save:
            results.save({name: sections[name]}, options)
    for section in sections.values():
        print(f"\n{section.title}")
        for what, ratio, limit, met, remark in bar_rows(section):
            print(f"  {met.strip('*'):>3}  {ratio:>6} {limit:>7}  {what}  {remark}".rstrip())
    print(f"\nwritten: {options.folder / 'bench.md'} and bench.json")
    if given.save:
        readme.update(results.load())
        if "curves" in sections:
            shutil.copy(options.folder / "curves.png", results.PATH.with_name("curves.png"))
        print(f"committed: {results.PATH} and the table of the README")
    for bar, before in lost:
        print(f"WORSE: {bar.what}: {number(bar.ratio)}, was {number(before)}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
