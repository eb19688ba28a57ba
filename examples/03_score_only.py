"""A target known by its score alone: Langevin is biased by its step, ScoreMALA is not.

The score of the quartic, s(x) = -x³ - x, is all the kernels see. The exact E[x²] is known.
"""

import numpy as np
from _style import BLUE, INK, PALE, VERMILION, options, plt, save

import samplekit as sk


def second_moment(target, kernel, draws, seed):
    """Estimate E[x²] and its standard error from many independent chains."""
    run = sk.sample(target, kernel, draws=draws, warmup=500, chains=64, seed=seed, progress=False)
    each = (run.posterior["x"].values.astype(float) ** 2).mean(axis=(1, 2))
    return each.mean(), each.std(ddof=1) / np.sqrt(len(each))


def main():
    args = options(__doc__)
    target = sk.from_score(lambda x: -(x**3) - x, dim=1)
    exact = sk.targets.double_well().expectations["x0^2"][1]
    steps = np.array(
        [0.2, 0.8] if args.quick else [0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8]
    )
    draws = 500 if args.quick else 20_000
    print(f"exact E[x²] = {exact:.4f}\n step   Langevin           ScoreMALA")
    rows = []
    for seed, step in enumerate(steps):
        ula = second_moment(target, sk.Langevin(float(step)), draws, seed)
        fixed = second_moment(target, sk.ScoreMALA(step_size=float(step)), draws, seed)
        rows.append((*ula, *fixed))
        print(f"{step:5.2f}   {ula[0]:.4g} ± {ula[1]:.2g}    {fixed[0]:.4g} ± {fixed[1]:.2g}")
    ula, ula_error, fixed, fixed_error = np.array(rows).T

    figure, ax = plt.subplots(figsize=(6.4, 4))
    ax.axhline(exact, color=INK, lw=1.2, label="exact")
    fine = ula < 10  # beyond, a step overshoots further than the last: it explodes
    # The bias of an unadjusted step is of order η²; the next term shows at large steps.
    terms = np.stack([steps[fine] ** 2, steps[fine] ** 4], axis=1) / ula_error[fine, None]
    a, b = np.linalg.lstsq(terms, (ula[fine] - exact) / ula_error[fine])[0]
    curve = np.linspace(0, steps[fine][-1], 100)
    ax.plot(curve, exact + a * curve**2 + b * curve**4, color=PALE, label="aη² + bη⁴, fitted")
    good = steps[fine], ula[fine], 3 * ula_error[fine]
    ax.errorbar(*good, fmt="o", color=VERMILION, label="Langevin")
    top = 1.15 * max(ula[fine])
    ax.plot(
        steps[~fine], np.full((~fine).sum(), top), "x", color=VERMILION, label="Langevin explodes"
    )
    ax.errorbar(steps, fixed, 3 * fixed_error, fmt="s", color=BLUE, label="ScoreMALA")
    ax.set(ylim=(0.98 * exact, 1.03 * top))
    ax.set(title="Langevin is biased by its step, ScoreMALA is not")
    ax.set(xlabel="step size η", ylabel="E[x²]")
    ax.legend()
    save(figure, args, "03_score_only")


if __name__ == "__main__":
    main()
