"""Which measurements of a tumour depend on each other directly? A sparse graph, two ways.

Ten mean measurements of 569 cell nuclei (scikit-learn). Radius, perimeter and area say nearly the
same, so plain correlations link almost everything. An edge of the graph is a partial correlation:
what two measurements share beyond all the others. The penalised Hyvärinen score needs no
determinant, and the extended BIC chooses the penalty; beside it scikit-learn's GraphicalLassoCV.
"""

import numpy as np
from _style import BLUE, COLORS, INK, PALE, VERMILION, options, plt, save
from sklearn.covariance import GraphicalLassoCV
from sklearn.datasets import load_breast_cancer

import samplekit as sk

LIMIT = 1e-8  # GraphicalLassoCV's zeros are exact too; this is for rounding


def partial(precision):
    """Return the partial correlations."""
    root = np.sqrt(np.diag(precision))
    return -precision / np.outer(root, root)


def draw_graph(ax, precision, names, title):
    angle = np.pi / 2 - 2 * np.pi * np.arange(len(names)) / len(names)
    x, y = np.cos(angle), np.sin(angle)
    values = np.triu(partial(precision), 1)
    pairs = np.argwhere(np.abs(values) > LIMIT)
    for i, j in sorted(pairs.tolist(), key=lambda pair: abs(values[*pair])):
        value = values[i, j]
        color = BLUE if value > 0 else VERMILION
        ax.plot(x[[i, j]], y[[i, j]], color=color, lw=0.5 + 6 * abs(value), alpha=0.75, zorder=1)
    ax.scatter(x, y, s=60, color=INK, zorder=2)
    for name, at_x, at_y in zip(names, x, y, strict=True):
        side = "center" if abs(at_x) < 0.1 else "left" if at_x > 0 else "right"
        ax.text(1.1 * at_x, 1.14 * at_y, name, ha=side, va="center", fontsize=8)
    ax.set(title=f"{title}: {len(pairs)} of 45 edges", xlim=(-1.75, 1.75), ylim=(-1.4, 1.4))
    ax.set_aspect("equal")
    ax.axis("off")


def main():
    args = options(__doc__)
    data = load_breast_cancer(as_frame=True).data.filter(like="mean ")
    data.columns = data.columns.str.removeprefix("mean ").str.replace("fractal ", "fractal\n")
    rows = np.log(data + data[data > 0].min())  # skewed, and zero at its least
    rows = (rows - rows.mean()) / rows.std()
    model = sk.families.gaussian_graphical_model(penalty="ebic").fit(rows)
    print(model.edges_.head(8).to_string(index=False))
    path = model.path_
    print(f"penalty {model.penalty_:.3g} of {len(path)} tried, {len(model.edges_)} edges")
    # Below 0.05 it does not converge: the columns are nearly collinear.
    lasso = GraphicalLassoCV(alphas=np.geomspace(0.05, 0.5, 6), max_iter=1000).fit(rows)

    figure, (left, right, ax) = plt.subplots(1, 3, figsize=(13, 4.4), width_ratios=(4, 4, 3))
    draw_graph(left, model.precision_, data.columns, "Score, extended BIC")
    draw_graph(right, lasso.precision_, data.columns, "Likelihood, cross-validation")
    ax.semilogx(path["penalty"], path["ebic"] - path["ebic"].min(), color=COLORS[0])
    ax.set_yscale("symlog", linthresh=10)
    ax.axvline(model.penalty_, color=PALE, lw=4, zorder=0)
    ax.set(xlabel="penalty", ylabel="extended BIC, above its least", title="The choice")
    edges = ax.twinx()
    edges.semilogx(path["penalty"], path["edges"], color=COLORS[1], ls="--")
    edges.set_ylabel("edges (dashed)")
    figure.text(0.02, 0.02, "blue: positive, orange: negative partial correlation", fontsize=8)
    save(figure, args, "14_graph_of_breast_cancer")


if __name__ == "__main__":
    main()
