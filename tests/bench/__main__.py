"""Run the benchmarks: `python -m tests.bench [--quick] [--only cold,warm,many] ...`."""

import argparse
import os
from pathlib import Path

from tests.bench import (
    anneal,
    boltzmann,
    closed_form,
    cold,
    diagnose,
    fields,
    imports,
    learned,
    many,
    peers,
    warm,
)
from tests.bench.report import Options, Section, bar_rows, write

WORKLOADS = {
    "import": imports.measure,
    "cold": cold.measure,
    "warm": warm.measure,
    "diagnose": diagnose.measure,
    "many": many.measure,
    "anneal": anneal.measure,
    "fields": fields.measure,
    "learned": learned.measure,
    **closed_form.MEASURES,
    **boltzmann.MEASURES,
}

BESIDE_TORCH = {"many", "anneal", "learned", "boltzmann"}


def parse() -> tuple[list[str], Options]:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, fewer cases: a smoke test")
    parser.add_argument("--only", default=",".join(WORKLOADS), help="workloads, with commas")
    parser.add_argument("--rounds", type=int, help="rounds of every workload (5; --quick 1)")
    parser.add_argument("--output", type=Path, default=Path("bench-results"), metavar="DIR")
    given = parser.parse_args()
    names = [n.strip() for n in given.only.split(",") if n.strip()]
    unknown = sorted(set(names) - set(WORKLOADS))
    if unknown or not names:
        parser.error(f"--only takes {', '.join(WORKLOADS)}, not {', '.join(unknown) or 'nothing'}")
    rounds = given.rounds if given.rounds is not None else (1 if given.quick else 5)
    if rounds < 1:
        parser.error(f"--rounds {rounds} is not a positive integer")
    folder = given.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    torch = peers.install() if BESIDE_TORCH & set(names) else peers.ready_python()
    return names, Options(folder, rounds, given.quick, torch)


def main() -> None:
    """Measure, print the bars, write the report; the verdict is for readers, not an exit code."""
    names, options = parse()
    sections: dict[str, Section] = {}
    for name in names:
        before = os.getloadavg()[0]
        sections[name] = WORKLOADS[name](options)
        sections[name].load = (before, os.getloadavg()[0])
        write(sections, options)  # after each workload: a later failure loses nothing
    for section in sections.values():
        print(f"\n{section.title}")
        for what, ratio, limit, met, remark in bar_rows(section):
            print(f"  {met.strip('*'):>3}  {ratio:>6} {limit:>7}  {what}  {remark}".rstrip())
    print(f"\nwritten: {options.folder / 'bench.md'} and bench.json")


if __name__ == "__main__":
    main()
