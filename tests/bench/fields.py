"""Ising lattices: spin updates against a NumPy loop and a bare checkerboard."""

from tests.bench.harness import Contender, measure_living
from tests.bench.report import Bar, Options, Section, number, with_range, with_spread

NOTES = (
    "Periodic Ising lattices at J = 0.4; nanoseconds of wall time an update of one spin, compiling "
    "excluded. The floor draws one uniform number a spin and sweep and compares it with the "
    "sigmoid of the neighbors, in one jitted loop; the NumPy loop goes over the sites. `sk.sample` "
    "includes the call, the energy of every sweep and the DataTree; with four chains it uses all "
    "cores."
)
# Spin updates of a round: about a second of a good sweep.
UPDATES = {64: 40_000_000, 512: 80_000_000}
FASTER, MOST = 50.0, 2.0


def measure(options: Options) -> Section:
    """Measure both sizes."""
    section = Section("Fields", NOTES)
    for side in (64,) if options.quick else UPDATES:
        name = f"{side} × {side}"
        print(f"fields, {name}", flush=True)
        sweeps = max(2, UPDATES[side] // side**2 // (10 if options.quick else 1))
        contenders = [
            Contender.worker("floor", "fields", "floor", side, sweeps),
            Contender.worker("the field's sweep alone", "fields", "sweep", side, sweeps),
            Contender.worker("sk.sample, one chain", "fields", "samplekit", side, sweeps),
            Contender.worker("sk.sample, four chains", "fields", "samplekit-4", side, sweeps),
            Contender.worker("NumPy loop", "fields", "numpy", side, max(1, 400_000 // side**2)),
        ]
        outcomes = measure_living(contenders, options.rounds, options.log)
        for outcome in outcomes.values():
            for one in outcome.rounds:
                one["ns"] = 1e9 * one["wall_s"] / one["updates"]
        section.outcomes[name] = outcomes
        base, own, loop = (outcomes[n] for n in ("floor", "sk.sample, one chain", "NumPy loop"))
        section.bars += [
            Bar(f"{name}: NumPy loop / sk.sample", loop.ratio("ns", own), FASTER, least=True),
            Bar(f"{name}: sk.sample / floor", own.ratio("ns", base), MOST),
        ]
        rows = [
            (
                o.name,
                with_range(o, "ns"),
                with_spread(o, "ns", base),
                number(1e3 / o.median("ns")),
                number(o.median("cores"), 2),
            )
            for o in outcomes.values()
        ]
        header = ("", "ns a spin", "÷ floor", "million spins a second", "cores used")
        section.table(name, header, rows)
    return section
