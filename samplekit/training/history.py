"""The history of a training as a table and a picture."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

# Numbers that share an axis, in the order of their panels; any other gets a panel of its own.
_TOGETHER = ("loss", "held_out")


def as_frame(rows: list[dict[str, float]]) -> "pd.DataFrame":
    """Return one row an epoch.

    Examples
    --------
    >>> as_frame([{"epoch": 1, "loss": 0.5, "seconds": 0.1}])["loss"].tolist()
    [0.5]
    """
    import pandas as pd

    return pd.DataFrame(rows).set_index("epoch")


def plot_history(history: "pd.DataFrame", title: str = "") -> Any:
    """Draw every number of a training over its epochs.

    Parameters
    ----------
    history
        What a fitted estimator has as `history_`.
    title
        A headline.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> rows = [{"epoch": e, "loss": 1 / e, "seconds": 0.1} for e in (1, 2, 3)]
    >>> len(plot_history(as_frame(rows)).axes)
    1
    """
    from samplekit.diagnostics.plot_style import COLORS, Picture, styled

    names = [str(name) for name in history.columns if name != "seconds"]
    losses = [name for name in _TOGETHER if name in names]
    panels = [losses] * bool(losses) + [[name] for name in names if name not in losses]
    with styled():
        figure = Picture((4 * len(panels), 3))
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for ax, panel in zip(axes, panels, strict=True):
            for name, color in zip(panel, COLORS, strict=False):
                ax.plot(history.index, history[name], color=color, label=name.replace("_", "-"))
            ax.set(xlabel="epoch", title=" and ".join(panel).replace("_", " "))
            if len(panel) > 1:
                ax.legend()
        figure.suptitle(title)
    return figure
