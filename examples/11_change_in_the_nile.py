"""When did the Nile change? Score-based CUSUM on a hundred years of its flow.

The first twenty years say what is usual; a drop by 1.5 standard deviations is watched for. The
detector sees scores only, so neither model needs a normalising constant. On the right, in two
correlated dimensions: what that costs against the likelihood, which needs both constants.
"""

import numpy as np
from _style import BLUE, INK, PALE, VERMILION, options, plt, save

import samplekit as sk
from samplekit.estimators.change import first_passages

# Flow at Aswan 1871-1970, 10⁸ m³ a year: Cobb 1978, Biometrika 65(2); "Nile" in R, statsmodels.
FLOW = np.array([
    1120, 1160, 963, 1210, 1160, 1160, 813, 1230, 1370, 1140, 995, 935, 1110, 994, 1020, 960,
    1180, 799, 958, 1140, 1100, 1210, 1150, 1250, 1260, 1220, 1030, 1100, 774, 840, 874, 694, 940,
    833, 701, 916, 692, 1020, 1050, 969, 831, 726, 456, 824, 702, 1120, 1100, 832, 764, 821, 768,
    845, 864, 862, 698, 845, 744, 796, 1040, 759, 781, 865, 845, 944, 984, 897, 822, 1010, 771,
    676, 649, 846, 812, 742, 801, 1040, 860, 874, 848, 890, 744, 749, 838, 1050, 918, 986, 797,
    923, 975, 815, 1020, 906, 901, 1170, 912, 746, 919, 718, 714, 740,
], float)  # fmt: skip
YEARS = np.arange(1871, 1971)
DELTA, COVARIANCE = np.array([0.9, 0.5]), np.array([[2.0, 0.6], [0.6, 1.0]])


def watch_the_nile():
    """Return the detector and its statistic, from 1891 on."""
    usual = FLOW[:20, None]
    before = sk.families.gaussian().fit(usual)
    mean, sd = before.params_["mean"], before.params_["sd"]
    lower = np.ravel(mean) - 1.5 * np.ravel(sd)
    after = sk.targets.gaussian(lower, np.ravel(sd) ** 2)
    detector = sk.ScoreCUSUM(before, after, average_run_length=500).fit(usual)
    return detector, detector.path(FLOW[20:, None])


def delay_curves(runs):
    """Return (average run length, delay) of the score CUSUM and of the likelihood's."""
    root, levels = np.linalg.cholesky(COVARIANCE), np.arange(1.0, 5.5 if runs > 500 else 3.5, 0.5)
    before, after = (
        lambda r, n, m=m: m + r.normal(size=(n, 2)) @ root.T for m in (0 * DELTA, DELTA)
    )
    random = np.random.default_rng(0)
    targets = (sk.targets.gaussian(mean, COVARIANCE) for mean in (0 * DELTA, DELTA))
    detector = sk.ScoreCUSUM(*targets).fit(before(random, 50_000))
    table = detector.run_length(before, after, thresholds=levels, runs=runs)
    tilt = np.linalg.solve(COVARIANCE, DELTA)
    likelihood = [
        first_passages(lambda n, d=d: (d(random, n) - DELTA / 2) @ tilt, levels, runs=runs)[0]
        for d in (before, after)
    ]
    return (table["average_run_length"], table["delay"]), [x.mean(axis=1) for x in likelihood]


def main():
    args = options(__doc__)
    detector, path = watch_the_nile()
    alarm, change = (1891 + row for row in (detector.alarm_, detector.change_))
    print(f"alarm in {alarm}, the change seems to have been in {change}\n{detector}")
    score, likelihood = delay_curves(200 if args.quick else 4000)

    figure = plt.figure(figsize=(10, 4.6))
    grid = figure.add_gridspec(2, 2, width_ratios=(3, 2))
    flow, z, curves = (figure.add_subplot(grid[k]) for k in ((0, 0), (1, 0), (slice(None), 1)))
    flow.plot(YEARS, FLOW, color=BLUE)
    flow.axvspan(1870.5, 1890.5, color=PALE, alpha=0.4, lw=0)
    flow.text(1872, 500, "fitted", color=INK)
    flow.axvline(change, color=VERMILION, ls="--")
    flow.set(title=f"The flow of the Nile fell in {change}", ylabel="10⁸ m³ a year")
    z.plot(YEARS[20:], path, color=BLUE)
    z.axhline(detector.threshold, color=INK, lw=1)
    z.text(1931, 1.3 * detector.threshold, "≤ one false alarm in 500 years", color=INK)
    z.plot(alarm, path[alarm - 1891], "o", color=VERMILION)
    z.annotate(f"alarm {alarm}", (alarm, path[alarm - 1891]), (alarm - 16, 12), color=VERMILION)
    z.set(xlim=flow.get_xlim(), xlabel="year", ylabel="CUSUM", ylim=(0, 40))
    curves.semilogx(*likelihood, "-", color=INK, label="likelihood")
    curves.semilogx(*score, "o", color=VERMILION, label="score")
    curves.set(title="Little is lost without normalisers", xlabel="rows between false alarms")
    curves.set(ylabel="rows until the alarm")
    curves.legend()
    save(figure, args, "11_change_in_the_nile")


if __name__ == "__main__":
    main()
