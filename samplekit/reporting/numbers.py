"""Numbers as people read them: as many digits as mean something, and no more."""

import math

import numpy as np

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def fixed(value: float, decimals: int) -> str:
    """Return a number with so many decimals; what is not finite is said in words.

    Examples
    --------
    >>> fixed(1.0041, 3), fixed(-0.0001, 2), fixed(float("nan"), 2), fixed(float("-inf"), 2)
    ('1.004', '0.00', 'NaN', '−∞')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value and (abs(value) >= 1e7 or decimals > 7):
        return minus(f"{value:.3g}")
    text = f"{value:.{max(0, decimals)}f}"
    return minus(text.lstrip("-") if not float(text) else text)


def minus(text: str) -> str:
    """Write a real minus sign."""
    return text.replace("-", "−")


def decimals_for(scale: float, digits: int = 3) -> int:
    """Return the decimals that show so many significant digits of something of this size.

    Examples
    --------
    >>> decimals_for(0.123), decimals_for(45.6), decimals_for(1234.5)
    (3, 1, 0)
    """
    if not math.isfinite(scale) or scale <= 0:
        return digits
    return max(0, digits - 1 - math.floor(math.log10(scale)))


def short(value: float) -> str:
    """Return a number in about three significant digits.

    Examples
    --------
    >>> short(1234567), short(45678), short(812), short(0.01234), short(3.2e-7)
    ('1.23 million', '45,700', '812', '0.0123', '3.2e−07')
    """
    if not math.isfinite(value):
        return fixed(value, 0)
    if value == 0:
        return "0"
    if abs(value) >= 1e9 or abs(value) < 1e-4:
        return minus(f"{value:.3g}")
    if abs(value) >= 1e6:
        return minus(f"{value / 1e6:.3g} million")
    if abs(value) >= 1000:
        return minus(f"{float(f'{value:.3g}'):,.0f}")
    return minus(f"{value:.3g}")


def count(number: int, word: str) -> str:
    """Return a number of things.

    Examples
    --------
    >>> count(1, "chain"), count(4000, "draw")
    ('1 chain', '4,000 draws')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a time as people say it.

    Examples
    --------
    >>> duration(0.032), duration(4.25), duration(95), duration(7300)
    ('32 ms', '4.2 s', '1 min 35 s', '2 h 1 min')
    """
    if not math.isfinite(seconds):
        return fixed(seconds, 0)
    if seconds < 1:
        return f"{seconds * 1000:.2g} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def tick_steps(low: float, high: float, most: int) -> np.ndarray:
    """Return at most so many round numbers (1, 2 or 5 times a power of ten) from low to high."""
    raw = (high - low) / max(1, most)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10, 20) if (high - low) / (power * m) <= most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return np.arange(first, last + 1) * step


def tick_labels(values: np.ndarray) -> tuple[list[str], str]:
    """Return short labels for equally spaced ticks, and what they leave out ("×10³", "+5000").

    Examples
    --------
    >>> tick_labels(np.array([0.0, 0.5, 1.0]))
    (['0.0', '0.5', '1.0'], '')
    >>> tick_labels(np.array([0.0, 2e6, 4e6]))
    (['0', '2', '4'], '×10⁶')
    """
    if len(values) < 2:
        return [minus(f"{v:.4g}") for v in values], ""
    step, largest = float(values[1] - values[0]), float(np.abs(values).max())
    if largest / step > 1e4:
        base = float(values[0])
        labels, note = tick_labels(values - base)
        return labels, f"{'+' if base >= 0 else '−'}{abs(base):.10g}{' ' * bool(note)}{note}"
    power = 3 * math.floor(math.log10(largest) / 3)
    if -3 <= power <= 3 and largest < 1e5 and step >= 1e-3:
        power = 0
    scaled, gap = values / 10.0**power, step / 10.0**power
    places = max(0, -math.floor(math.log10(gap) + 1e-9))
    labels = [fixed(float(v), places) for v in scaled]
    return labels, f"×10{str(power).translate(_SUPERSCRIPTS)}" if power else ""
