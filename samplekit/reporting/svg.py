"""The little that a chart needs: axes with round ticks, compact paths, a frame around both.

Colours are classes and CSS variables of the page, so that a chart follows light and dark and a
colour costs a few bytes. Coordinates are the pixels of a view box that is shown about 1:1.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from samplekit.reporting.markup import Markup, element, join
from samplekit.reporting.numbers import short, tick_labels, tick_steps

WIDTH, HEIGHT = 300, 190
LEFT, RIGHT, TOP, BOTTOM = 40, 6, 18, 34


@dataclasses.dataclass(frozen=True)
class Axis:
    """A map from values to pixels, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def over(cls, values: np.ndarray, start: float, end: float, *, log: bool = False) -> "Axis":
        """Return the axis that shows these values; a single value gets room on both sides."""
        finite = values[np.isfinite(values)]
        if not finite.size:
            return cls(0.0, 1.0, start, end)
        low, high = float(finite.min()), float(finite.max())
        if high - low <= 1e-6 * max(abs(low), abs(high)):
            room = 0.5 * max(abs(low), abs(high)) or 1.0
            low, high = low - room, high + room
        return cls(low, high, start, end, log and low > 0)

    def __call__(self, values: Any) -> np.ndarray:
        """Return the pixels of values."""
        values = np.asarray(values, np.float64)
        low, high = self.low, self.high
        if self.log:
            with np.errstate(divide="ignore", invalid="ignore"):
                values, low, high = np.log(values), math.log(low), math.log(high)
        # Halves keep the difference of huge ends finite.
        part = (values / 2 - low / 2) / (high / 2 - low / 2)
        return self.start + (self.end - self.start) * part

    def ticks(self, most: int) -> tuple[np.ndarray, list[str], str]:
        """Return tick values, their labels, and what the labels leave out."""
        if not self.log:
            values = tick_steps(self.low, self.high, most)
            return values, *tick_labels(values)
        low, high = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        powers = np.arange(low, high + 1, max(1, -(-(high - low) // most)))
        values = 10.0**powers
        if len(values) < 2:
            values = np.array([self.low, math.sqrt(self.low * self.high), self.high])
        return values, [short(v) for v in values], ""


def number(value: float) -> str:
    """Return a coordinate to a tenth of a pixel."""
    text = f"{value:.1f}"
    return text.removesuffix(".0") if text != "-0.0" else "0"


def line(xs: np.ndarray, ys: np.ndarray, **attributes: Any) -> Markup:
    """Return a path through the points, with a gap wherever one is not finite."""
    good = np.isfinite(xs) & np.isfinite(ys)
    parts, pen = [], "M"
    for x, y, drawn in zip(xs.tolist(), ys.tolist(), good.tolist(), strict=True):
        if not drawn:
            pen = "M"
            continue
        parts.append(f"{pen}{number(x)} {number(y)}")
        pen = "L" if pen == "M" else " "
    # A lone point between gaps shows as a dot because the ends of lines are round.
    path = "".join(parts).replace("L ", "L")
    return element("path", d=path, **attributes) if path else Markup("")


def area(xs: np.ndarray, ys: np.ndarray, floor: float, **attributes: Any) -> Markup:
    """Return the area between the points and a horizontal line."""
    return line(
        np.concatenate([xs[:1], xs, xs[-1:]]),
        np.concatenate([[floor], ys, [floor]]),
        **attributes,
    )


def dots(xs: np.ndarray, ys: np.ndarray, **attributes: Any) -> Markup:
    """Return points as one path of strokes without length; their class sets the size."""
    good = np.isfinite(xs) & np.isfinite(ys)
    pairs = zip(xs[good].tolist(), ys[good].tolist(), strict=True)
    path = "".join(f"M{number(x)} {number(y)}h0" for x, y in pairs)
    return element("path", d=path, **attributes) if path else Markup("")


def text(x: float, y: float, words: str, **attributes: Any) -> Markup:
    """Return a label."""
    return element("text", words, x=number(x), y=number(y), **attributes)


def shortened(words: str, most: int) -> str:
    """Return words cut to a length, with an ellipsis where something is missing."""
    return words if len(words) <= most else words[: most - 1] + "…"


def x_axis(axis: Axis, bottom: float, label: str, most: int = 4) -> Markup:
    """Return ticks below a chart and the name of the axis."""
    values, labels, note = axis.ticks(most)
    pixels = axis(values)
    parts = [_tick_text(p, bottom, words, axis) for p, words in zip(pixels, labels, strict=True)]
    marks = "".join(f"M{number(p)} {number(bottom)}v4" for p in pixels)
    named = f"{label} ({note})" if note else label
    middle = (axis.start + axis.end) / 2
    return join(
        [
            element("path", d=f"M{number(axis.start)} {number(bottom)}H{number(axis.end)}{marks}"),
            *parts,
            text(middle, bottom + 29, named, text_anchor="middle", class_="label"),
        ]
    )


def _tick_text(pixel: float, bottom: float, words: str, axis: Axis) -> Markup:
    """Return a tick's label, kept inside the picture at the right end."""
    over = pixel + 3.6 * len(words) - (axis.end + RIGHT)
    return text(pixel - max(0.0, over), bottom + 15, words, text_anchor="middle")


def y_axis(axis: Axis, left: float, right: float, label: str = "", *, most: int = 4) -> Markup:
    """Return grid lines with ticks left of a chart, and the name of the axis above it."""
    values, labels, note = axis.ticks(most)
    pixels = axis(values)
    parts = [
        text(left - 5, p + 3.5, words, text_anchor="end")
        for p, words in zip(pixels, labels, strict=True)
    ]
    lines = "".join(f"M{number(left)} {number(p)}H{number(right)}" for p in pixels)
    named = " ".join(part for part in (label, f"({note})" if note and label else note) if part)
    top = min(axis.start, axis.end)
    return join(
        [
            element("path", d=lines, class_="grid"),
            *parts,
            text(4, top - 7, named, class_="label") if named else "",
        ]
    )


def chart(
    words: str, marks: Sequence[Any], *, width: int = WIDTH, height: int = HEIGHT, **attributes: Any
) -> Markup:
    """Return a picture whose content is also said in words."""
    return element(
        "svg",
        *marks,
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label=words,
        **attributes,
    )
