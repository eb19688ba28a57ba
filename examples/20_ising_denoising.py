"""Clean a noisy binary image: an Ising prior, posterior marginals by Gibbs, the best image.

Each pixel of the picture was flipped with a chance of 0.2. The posterior of the clean image is an
Ising field; Gibbs sampling draws it, all black squares of a checkerboard at once, then the white
ones. The marginals minimise the number of wrong pixels and say where the answer is uncertain; the
most probable image is found by annealing.
"""

import numpy as np
from _style import options, plt, save
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.ndimage import median_filter

import samplekit as sk

FLIP, COUPLING = 0.2, 0.85


def letters(height, width):
    """Return a word drawn by matplotlib as a boolean image."""
    figure = Figure(figsize=(width / 100, height / 100), dpi=100)
    canvas = FigureCanvasAgg(figure)
    figure.text(0.5, 0.46, "Gibbs", ha="center", va="center", size=0.4 * height, weight="bold")
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, 0] < 128


def main():
    args = options(__doc__)
    clean = letters(60, 140) if args.quick else letters(96, 224)
    noisy = clean ^ (np.random.default_rng(0).random(clean.shape) < FLIP)
    field = sk.targets.denoising_field(noisy, COUPLING, FLIP)

    draws = 100 if args.quick else 1000
    run = sk.sample(field, sk.Gibbs(), draws=draws, warmup=draws, thin=5, seed=1)
    x = run["posterior"]["x"]
    chance = (x == 1).mean(("chain", "draw")).values
    apart = [(x[chains] == 1).mean(("chain", "draw")) for chains in (slice(0, 2), slice(2, 4))]
    print(f"marginals of chains 0–1 and 2–3 differ by {np.abs(apart[0] - apart[1]).max():.3f}")
    best = field.map(sweeps=200 if args.quick else 1000)

    answers = {
        "as observed": noisy,
        "median of 5 × 5": median_filter(noisy, 5),
        "marginal above one half": chance > 0.5,
        "most probable image": best.x > 0,
    }
    errors = {name: np.mean(answer != clean) for name, answer in answers.items()}
    for name, error in errors.items():
        print(f"{name:25s} {100 * error:5.2f} % of the pixels wrong")
    sure = np.maximum(chance, 1 - chance)
    for low, high in ((0.5, 0.7), (0.7, 0.9), (0.9, 0.99), (0.99, 1.01)):
        these = (sure >= low) & (sure < high)
        right = np.mean((chance > 0.5)[these] == clean[these])
        print(f"pixels it is {sure[these].mean():.3f} sure of: {right:.3f} of {these.sum()} right")

    pictures = {
        "clean": clean,
        f"observed, {100 * errors['as observed']:.0f} % wrong": noisy,
        f"median of 5 × 5, {100 * errors['median of 5 × 5']:.1f} %": answers["median of 5 × 5"],
        f"chance of black, {100 * errors['marginal above one half']:.1f} %": chance,
        f"most probable, {100 * errors['most probable image']:.1f} %": best.x > 0,
        "uncertain pixels": 4 * chance * (1 - chance),
    }
    figure, axes = plt.subplots(3, 2, figsize=(8.4, 6.2))
    for ax, (title, picture) in zip(axes.ravel(), pictures.items(), strict=True):
        ax.imshow(picture, cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        ax.set(title=title, xticks=[], yticks=[])
        ax.spines[:].set_visible(True)
    save(figure, args, "20_ising_denoising")


if __name__ == "__main__":
    main()
