"""`compare`: which model fits held-out rows best, by the Hyvärinen score."""

import dataclasses
import html
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from samplekit.core.errors import EstimatorError
from samplekit.estimators.hyvarinen import scores_of
from samplekit.estimators.placed import Rows, common_domain, place

if TYPE_CHECKING:
    import pandas as pd

    from samplekit.diagnostics.plot_style import Picture

type Split = tuple[NDArray[np.intp], NDArray[np.intp]]

# Of a prequential comparison, the part of the rows that is only fitted to, and the number of fits.
FIRST_PART = 0.2
REFITS = 25


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Models in order, the best first; what `compare` returns.

    Attributes
    ----------
    table
        Per model: the mean Hyvärinen score (lower is better) and its standard error, the
        difference to the best with the standard error of that difference (paired by row), and how
        the model was judged.
    scores
        The score of every judged row (index: row of X) under every model.
    prequential
        Whether each row was judged by a fit to the rows before it.
    """

    table: "pd.DataFrame"
    scores: "pd.DataFrame"
    prequential: bool

    @property
    def best(self) -> str:
        """The model with the lowest mean score."""
        return str(self.table.index[0])

    def __str__(self) -> str:
        """Show the table, with what it says in a line above it."""
        return f"{self._verdict()}\n{_readable(self.table).to_string()}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the table for a notebook; every name is escaped."""
        table = _readable(self.table).to_html(escape=True)
        return f"<div><p>{html.escape(self._verdict())}</p>{table}</div>"

    def _verdict(self) -> str:
        rows = f"{len(self.scores):,} rows, mean Hyvärinen score, lower is better"
        if len(self.table) == 1:
            return rows
        rest = self.table.iloc[1:]
        near = rest.index[rest["difference"] < 2 * rest["difference_error"]]
        if len(near):
            return f"{rows}; within two standard errors of the best: {', '.join(map(str, near))}"
        return f"{rows}; the best is ahead of all others by more than two standard errors"

    def plot(self) -> "Picture":
        """Return a figure: differences to the best with two standard errors.

        A prequential comparison also shows how the differences add up from row to row: a model that
        fits better gains steadily, one that profits from few rows in jumps.
        """
        from samplekit.diagnostics.plot_style import Picture, styled

        with styled():
            height = max(2.2, 0.9 + 0.42 * len(self.table))
            if not self.prequential:
                figure = Picture((6.4, height))
                self._draw_differences(figure.subplots())
                return figure
            figure = Picture((6.4, height + 2.6))
            above, below = figure.subplots(2, 1, height_ratios=(height, 2.6))
            self._draw_differences(above)
            self._draw_sums(below)
            return figure

    def _draw_differences(self, ax: Any) -> None:
        from samplekit.diagnostics.plot_style import BLUE, PALE, VERMILION

        at = np.arange(len(self.table))
        mean, error = (self.table[c].to_numpy() for c in ("difference", "difference_error"))
        ax.axvline(0.0, color=PALE, lw=1, zorder=0)
        ax.plot(mean[:1], at[:1], "D", color=BLUE)
        ax.errorbar(mean[1:], at[1:], xerr=2 * error[1:], fmt="o", color=VERMILION, capsize=3)
        ax.set_yticks(at, labels=[str(name) for name in self.table.index])
        ax.set(ylim=(len(at) - 0.5, -0.5), title="Hyvärinen score: difference to the best")
        ax.set(xlabel="mean difference ± 2 standard errors (further right is worse)")

    def _draw_sums(self, ax: Any) -> None:
        from samplekit.diagnostics.plot_style import COLORS

        for name, color in zip(self.table.index, COLORS * len(self.table), strict=False):
            sums = (self.scores[name] - self.scores[self.best]).cumsum()
            ax.plot(self.scores.index, sums, color=color, label=str(name))
        ax.set(title="Added up, each row judged by a fit to those before it")
        ax.set(xlabel="row", ylabel="sum of differences")
        ax.legend(loc="upper left")


def compare(
    models: Mapping[str, Any],
    X: Any,
    *,
    prequential: bool = False,
    folds: int = 5,
    start: int | None = None,
    domain: Any = None,
    weight: Any = None,
    seed: int = 0,
) -> Comparison:
    """Compare models by the Hyvärinen score of rows that they were not fitted to.

    Parameters
    ----------
    models
        By name: targets and fitted estimators, which are judged as they are (on rows they should
        not have seen); estimators not yet fitted; functions that take rows and return a target.
        The last two are fitted here, and judged on other rows than they were fitted to.
    X
        Rows of shape (n, d).
    prequential
        Judge each row by a fit to the rows before it (their order matters: a forecast), instead of
        by cross-validation.
    folds
        Parts of a cross-validation.
    start
        Rows before the first forecast; None takes a fifth of all. Models are fitted again about 25
        times on the way.
    domain, weight
        The coordinates in which all are judged, as in `hyvarinen_score`; None is where the supports
        of all meet. Weights with which models were fitted play no role here.
    seed
        Of the shuffle before cross-validation.

    Notes
    -----
    The mean of S(y) = Σ_j ½(∂_j log p)² + ∂²_j log p is, up to a number common to all models, half
    the Fisher divergence from the truth. Unlike marginal likelihoods and Bayes factors it does not
    change when a density is multiplied by a constant, so improper priors and unknown normalisers do
    no harm: Dawid and Musio 2015, Bayesian Analysis 10(2), doi:10.1214/15-BA942; Shao, Jacob, Ding
    and Tarokh 2019, JASA 114(528), doi:10.1080/01621459.2018.1518237. The models are judged in
    common coordinates, those of the narrowest support: log y where one is for positive data. A
    model with a larger support is judged as if it were cut off there.

    Standard errors treat rows as independent. Slopes are all that is compared: two densities that
    differ in the weights of well separated modes look alike.

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.estimators import families
    >>> from samplekit.estimators.comparison import compare
    >>> X = np.random.default_rng(0).gamma(2.0, size=(2000, 1))
    >>> result = compare({"gamma": families.gamma(), "lognormal": families.lognormal()}, X)
    >>> result.best
    'gamma'
    """
    import pandas as pd

    if not isinstance(models, Mapping) or not models:
        raise EstimatorError('models is not a dict of models. Give {"name": model, ...}.')
    rows = _as_rows(X)
    fixed = {name: _is_fixed(model) for name, model in models.items()}
    how = "forecast" if prequential else f"{folds} folds"
    if prequential:
        splits = list(_forward(len(rows), start))
    elif all(fixed.values()):
        splits = [(np.arange(0), np.arange(len(rows)))]
    else:
        splits = list(_shuffled(len(rows), folds, seed))
    scores = np.full((len(rows), len(models)), np.nan)
    for train, test in splits:
        fits = [
            model if fixed[name] else _fitted(model, rows[train]) for name, model in models.items()
        ]
        placed = [place(fit, rows) for fit in fits]
        common = common_domain(placed, rows.shape[1]) if domain is None else domain
        for column, one in enumerate(placed):
            scores[test, column] = scores_of(one, rows[test], domain=common, weight=weight)
    judged = np.sort(np.concatenate([test for _, test in splits]))
    every = pd.DataFrame(scores[judged], index=pd.Index(judged, name="row"), columns=list(models))
    return Comparison(
        _table(every, {name: "as given" if fixed[name] else how for name in models}),
        every,
        prequential,
    )


def _table(scores: "pd.DataFrame", how: Mapping[str, str]) -> "pd.DataFrame":
    """Return means, and differences to the best with their paired standard errors."""
    import pandas as pd

    ordered = scores[scores.mean().sort_values(kind="stable").index]
    apart = ordered.sub(ordered.iloc[:, 0], axis=0)
    root = np.sqrt(len(scores))
    table = {
        "score": ordered.mean(),
        "score_error": ordered.std() / root,
        "difference": apart.mean(),
        "difference_error": apart.std() / root,
        "judged": pd.Series(how),
    }
    return pd.DataFrame(table).loc[ordered.columns].rename_axis("model")


def _readable(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return the table with numbers a person reads."""
    numbers = table.drop(columns="judged").map(lambda value: f"{value:.4g}")
    return numbers.assign(judged=table["judged"])


def _as_rows(X: Any) -> Rows:
    rows = np.asarray(X, np.float64)
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or len(rows) < 2:
        raise EstimatorError(
            f"X has the shape {np.shape(X)}, but a comparison needs two or more rows, of shape "
            "(n, d)."
        )
    return rows


def _is_fixed(model: Any) -> bool:
    """Tell models to judge as they are from those to fit."""
    if hasattr(model, "fit"):
        from sklearn.exceptions import NotFittedError
        from sklearn.utils.validation import check_is_fitted

        try:
            check_is_fitted(model)
        except NotFittedError:
            return False
        return True
    return not callable(model) or hasattr(model, "log_density") or hasattr(model, "score")


def _fitted(model: Any, rows: Rows) -> Any:
    if not hasattr(model, "fit"):
        return model(rows)
    from sklearn.base import clone

    fresh: Any = clone(model)
    return fresh.fit(rows)


def _shuffled(count: int, folds: int, seed: int) -> Iterator[Split]:
    if not 2 <= folds <= count:
        raise EstimatorError(f"folds={folds} for {count} rows: give a number from 2 to {count}.")
    order = np.random.default_rng(seed).permutation(count)
    for test in np.array_split(order, folds):
        yield np.setdiff1d(order, test), np.sort(test)


def _forward(count: int, start: int | None) -> Iterator[Split]:
    first = max(2, int(FIRST_PART * count)) if start is None else start
    if not 1 <= first < count:
        raise EstimatorError(
            f"start={first} leaves nothing to fit to, or nothing to forecast, of {count} rows."
        )
    for test in np.array_split(np.arange(first, count), min(REFITS, count - first)):
        yield np.arange(test[0]), test
