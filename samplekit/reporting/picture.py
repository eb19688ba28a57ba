"""The target itself in one or two dimensions, with the draws: what was missed shows at once."""

from typing import TYPE_CHECKING

import numpy as np

from samplekit.reporting.markup import Markup, element, join
from samplekit.reporting.numbers import count
from samplekit.reporting.run_charts import MOST_POINTS, thinned
from samplekit.reporting.svg import Axis, area, chart, dots, line, number, shortened, x_axis, y_axis

if TYPE_CHECKING:
    from samplekit.diagnostics.landscape import Landscape

_WIDTH, _HEIGHTS = 400, {1: 240, 2: 350}
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 8, 20, 34
_ARROWS = 15  # along each axis
_BINS = 60


def picture(land: "Landscape") -> Markup:
    """Draw a target that was tabulated, and the draws on top of it.

    Parameters
    ----------
    land
        What `samplekit.diagnostics.landscape.survey` returned.
    """
    dim = len(land.labels)
    height = _HEIGHTS[dim]
    x = Axis.over(land.view[0], _LEFT, _WIDTH - _RIGHT)
    marks = _curve(land, x) if dim == 1 else _map(land, x)
    drawn = 0 if land.draws is None else len(land.draws)
    kind = "Score field" if land.density is None else "Density"
    words = f"{kind} of the target over {' and '.join(land.labels)}, with {count(drawn, 'draw')}"
    return chart(words, marks, width=_WIDTH, height=height)


def _curve(land: "Landscape", x: Axis) -> list[Markup]:
    """Draw the density as a line over the histogram of the draws."""
    bottom = _HEIGHTS[1] - _BOTTOM
    order = np.argsort(land.values[:, 0], kind="stable")
    places = order[thinned(np.arange(order.size), 480)]
    values, density = land.values[places, 0], np.zeros(places.size)
    if land.density is not None:
        density = land.density[places]
    draws = np.empty(0) if land.draws is None else land.draws[:, 0]
    bins = min(_BINS, 10 + int(2 * draws.size ** (1 / 3)))  # finer bins show noise
    edges = np.linspace(x.low, x.high, bins + 1)
    often = np.histogram(draws, edges)[0] / max(1, draws.size) / (edges[1] - edges[0])
    # A density that is infinite at the edge of its support must not flatten all the rest.
    high = max(float(np.quantile(density, 0.995)), float(often.max())) or 1.0
    y = Axis(0, 1.08 * high, bottom, _TOP)
    bars = area(x(np.repeat(edges, 2)[1:-1]), y(np.repeat(often, 2)), bottom, class_="area draws")
    held = (values >= x.low) & (values <= x.high)
    heights = np.where(held, np.maximum(y(density), _TOP - 12), np.nan)
    curve = line(x(values), heights, class_="curve target")
    name = shortened(land.labels[0], 40)
    return [y_axis(y, _LEFT, _WIDTH - _RIGHT, "density"), bars, curve, x_axis(x, bottom, name, 6)]


def _map(land: "Landscape", x: Axis) -> list[Markup]:
    """Draw the density as nested contours, or the score as arrows, under the draws."""
    bottom = _HEIGHTS[2] - _BOTTOM
    y = Axis.over(land.view[1], bottom, _TOP)
    names = [shortened(label, 40) for label in land.labels]
    marks = [y_axis(y, _LEFT, _WIDTH - _RIGHT, names[1], most=6), x_axis(x, bottom, names[0], 6)]
    inside = []
    if land.density is not None:
        inside.append(_contours(land, land.density, x, y))
    elif land.score is not None:
        inside.append(_arrows(land.values, land.score, x, y))
    if land.draws is not None:
        some = land.draws[thinned(np.arange(len(land.draws)), MOST_POINTS)]
        inside.append(dots(x(some[:, 0]), y(some[:, 1]), class_="point"))
    # The grid and stray draws may reach beyond the view.
    shape = {"width": x.end - x.start, "height": y.start - y.end}
    box = element("rect", x=x.start, y=y.end, **shape)
    marks.append(element("clipPath", box, id="view"))
    marks.append(element("g", *inside, clip_path="url(#view)"))
    return marks


def _contours(land: "Landscape", density: np.ndarray, x: Axis, y: Axis) -> Markup:
    """Return one filled path a level; they lie on one another, so that the middle is darkest."""
    from contourpy import contour_generator  # comes with matplotlib

    from samplekit.diagnostics.plot_style import mass_levels

    # A rim of zeros closes every contour at the edge of the grid.
    pixels = [np.pad(axis(land.values[..., i]), 1, mode="edge") for i, axis in enumerate((x, y))]
    lines = contour_generator(x=pixels[0], y=pixels[1], z=np.pad(density, 1))
    paths = []
    for level in mass_levels(density, land.mass):
        rings = [np.asarray(ring) for ring in lines.lines(float(level))]
        path = "".join(_ring(ring) for ring in rings if len(ring) > 2)
        paths.append(element("path", d=path, class_="contour"))
    return join(paths)


def _ring(points: np.ndarray) -> str:
    """Return a closed contour, without the points that are less than a pixel from the last."""
    kept = [points[0]]
    for point in points[1:]:
        if np.abs(point - kept[-1]).max() >= 1.0:
            kept.append(point)
    return "M" + " ".join(f"{number(a)} {number(b)}" for a, b in kept) + "Z"


def _arrows(values: np.ndarray, score: np.ndarray, x: Axis, y: Axis) -> Markup:
    """Return the score as arrows that point uphill, longer where it is larger."""
    rows, columns = (np.linspace(0, n - 1, _ARROWS + 2).astype(int)[1:-1] for n in score.shape[:2])
    at = values[np.ix_(rows, columns)].reshape(-1, 2)
    score = score[np.ix_(rows, columns)].reshape(-1, 2)
    start = np.stack([x(at[:, 0]), y(at[:, 1])], axis=1)
    # Directions as they look in the picture: pixels per value, and pixels grow downwards.
    stretch = [(a.end - a.start) / (a.high - a.low) for a in (x, y)]
    with np.errstate(invalid="ignore", over="ignore"):
        toward = score * np.array(stretch)
        size = np.linalg.norm(toward, axis=1, keepdims=True)
        # Lengths by rank of size: scores range over many orders of magnitude.
        rank = np.argsort(np.argsort(size, axis=0), axis=0) / max(1, size.size - 1)
        step = toward / size * (5 + 13 * rank)
    path = "".join(
        _arrow(*a, *s)
        for a, s in zip(start.tolist(), step.tolist(), strict=True)
        if np.isfinite([*a, *s]).all()
    )
    return element("path", d=path, class_="arrow")


def _arrow(x: float, y: float, dx: float, dy: float) -> str:
    """Return a shaft around a point with a head of three pixels."""
    long = max(1e-9, (dx * dx + dy * dy) ** 0.5)
    ux, uy = 3 * dx / long, 3 * dy / long
    tip = f"{number(x + dx / 2)} {number(y + dy / 2)}"
    wings = [
        f"{number(x + dx / 2 - ux - w * uy)} {number(y + dy / 2 - uy + w * ux)}"
        for w in (0.7, -0.7)
    ]
    tail = f"{number(x - dx / 2)} {number(y - dy / 2)}"
    return f"M{tail}L{tip}M{wings[0]}L{tip} {wings[1]}"
