"""What the examples share: two options, one look, and where the figures go."""

import argparse
import io
from pathlib import Path

import matplotlib as mpl
from PIL import Image

mpl.use("Agg")

from matplotlib import pyplot as plt

from samplekit.demo import contours as contours
from samplekit.diagnostics.plot_style import BLUE as BLUE
from samplekit.diagnostics.plot_style import COLORS as COLORS
from samplekit.diagnostics.plot_style import INK as INK
from samplekit.diagnostics.plot_style import ORANGE as ORANGE
from samplekit.diagnostics.plot_style import PALE as PALE
from samplekit.diagnostics.plot_style import SKY as SKY
from samplekit.diagnostics.plot_style import STYLE
from samplekit.diagnostics.plot_style import VERMILION as VERMILION
from samplekit.diagnostics.plot_style import scatter as scatter

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
