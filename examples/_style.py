"""What the examples share: two options, one look, and where the figures go."""

import argparse
import io
from pathlib import Path

import matplotlib as mpl
from PIL import Image

mpl.use("Agg")

from matplotlib import pyplot as plt

from samplekit.demo import BLUE, GREEN, INK, ORANGE, PALE, PURPLE, SKY, STYLE, VERMILION
from samplekit.demo import contours as contours
from samplekit.demo import scatter as scatter

COLORS = [BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE, INK, PALE]
plt.rcParams.update(STYLE)


def options(about: str | None) -> argparse.Namespace:
    """Read --quick (few draws, for tests) and --output (folder of the figures)."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="take few draws")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "figures")
    return parser.parse_args()


def save(figure, args: argparse.Namespace, name: str) -> None:
    """Write a figure and say where."""
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / f"{name}.png"
    buffer = io.BytesIO()
    figure.savefig(buffer)
    plt.close(figure)
    # 128 colors are enough for a plot, and a third of the bytes.
    Image.open(buffer).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path)
    print(f"figure: {path}")
