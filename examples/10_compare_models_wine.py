"""Which family fits a column? Compare gamma, lognormal and others by the Hyvärinen score.

178 Italian wines, 13 measurements (scikit-learn). Every family is fitted to four fifths of the
wines and judged on the rest, in turn. No normalising constant is needed, and the differences have
no unit: all families are judged in log y.
"""

import numpy as np
from _style import COLORS, INK, PALE, options, plt, save
from sklearn.datasets import load_wine

import samplekit as sk

FAMILIES = {
    "gamma": sk.families.gamma(),
    "lognormal": sk.families.lognormal(),
    "inverse gamma": sk.families.inverse_gamma(),
    "truncated normal": sk.families.truncated_normal(),
}
SHOWN = "malic_acid"


def density(family, x):
    """Return the fitted density, normalised to draw it (the comparison needs no such thing)."""
    return np.exp(family.score_samples(x[:, None]) - family.log_normalizer())


def main():
    args = options(__doc__)
    wine = load_wine(as_frame=True)
    columns = [SHOWN, "alcohol"] if args.quick else list(wine.data.columns)
    results = {name: sk.compare(FAMILIES, wine.data[[name]]) for name in columns}
    print(SHOWN, results[SHOWN], sep="\n")
    for name, result in results.items():
        print(f"{name:30s} {result.best}")

    figure, (ax, shown) = plt.subplots(1, 2, figsize=(10, 5), width_ratios=(3, 2))
    ax.axvline(0, color=INK, lw=1)
    for color, family in zip(COLORS, FAMILIES, strict=False):
        lines = [result.table.loc[family] for result in results.values()]
        gap, error = (np.array([x[c] for x in lines]) for c in ("difference", "difference_error"))
        # The score in log y grows with the squared relative slope; divide by its size at the best.
        size = np.array([abs(result.table["score"].iloc[0]) for result in results.values()])
        at = np.arange(len(columns)) + 0.16 * (list(FAMILIES).index(family) - 1.5)
        ax.errorbar(gap / size, at, xerr=2 * error / size, fmt="o", ms=4, color=color, label=family)
    ax.set_yticks(range(len(columns)), labels=[name.replace("_", " ") for name in columns])
    ax.set(ylim=(len(columns) - 0.5, -0.5))
    ax.set(xlabel="difference to the best ± 2 standard errors, relative to its score")
    ax.set(title="Held-out Hyvärinen score: the best is at 0")
    ax.legend(loc="lower right")

    values = wine.data[[SHOWN]].to_numpy()
    shown.hist(values[:, 0], 30, density=True, color=PALE)
    x = np.linspace(0.3, 1.05 * values.max(), 300)
    for color, (name, family) in zip(COLORS, FAMILIES.items(), strict=False):
        shown.plot(x, density(family.fit(values), x), color=color, label=name)
    shown.set(title=f"{SHOWN.replace('_', ' ')}, fitted", xlabel="g/l", yticks=[])
    save(figure, args, "10_compare_models_wine")


if __name__ == "__main__":
    main()
