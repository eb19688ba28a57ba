"""Denoising training of a small network: beside a bare scan, beside torch, and its first batch."""

from tests.bench.harness import Contender, measure_fresh, measure_living
from tests.bench.report import Bar, Options, Section, number, with_range, with_spread

# Over the bare scan, and seconds to the first batch beyond the imports.
MOST, FIRST = 1.1, 1.5
NOTES = (
    "A 2-128-128-2 network, 51,200 rows, batches of 512, noise and Adam included, compiling "
    "excluded; milliseconds of a batch in a fit of 10 epochs, its set-up included. The floor is a "
    "jitted scan of loss, gradient and Adam over batches that lie in order. `defaults` clips the "
    "gradient, averages the weights and lowers the rate besides. torch: fused Adam, on one thread "
    "or all, whichever is faster. First batch: a fresh process, without a compilation cache, from "
    "the end of the imports to the end of a fit of one batch."
)


def measure(options: Options) -> Section:
    """Measure all contenders."""
    section = Section("Learned scores", NOTES)
    if not options.torch_python:
        section.notes += " torch is not installed (python -m tests.bench.peers): left out."
    print("learned, denoising", flush=True)
    kinds = ("floor", "samplekit", "samplekit-defaults")
    found = [Contender.worker(k, "learned", k) for k in kinds]
    if options.torch_python:
        found.append(Contender.worker("torch", "torch_learned", python=options.torch_python))
    outcomes = measure_living(found, options.rounds, options.log)
    for outcome in outcomes.values():
        for one in outcome.rounds:
            one["ms"] = 1e3 * one["wall_s"] / one["batches"]
    section.outcomes["denoising"] = outcomes
    base, own = outcomes["floor"], outcomes["samplekit"]
    section.bars.append(Bar("a batch: samplekit / bare scan", own.ratio("ms", base), MOST))
    if "torch" in outcomes:
        ratio = own.ratio("ms", outcomes["torch"])
        section.bars.append(Bar("a batch: samplekit / torch", ratio, 1.0))
    rows = [
        (
            o.name,
            with_range(o, "ms"),
            with_spread(o, "ms", base),
            number(o.median("cores"), 2),
            number(o.median("loss")),
        )
        for o in outcomes.values()
    ]
    section.table("denoising", ("", "ms a batch", "÷ floor", "cores used", "last loss"), rows)
    fresh = measure_fresh([Contender.worker("samplekit", "learned", "first")], options.rounds,
                          options.log)["samplekit"]  # fmt: skip
    section.outcomes["first batch"] = {"samplekit": fresh}
    section.bars.append(Bar("seconds to the first batch", fresh.median("first_s"), FIRST))
    header = ("", "seconds beyond the imports", "of the whole process")
    times = (with_range(fresh, "first_s"), with_range(fresh, "wall_s"))
    section.table("first batch", header, [("samplekit", *times)])
    return section
