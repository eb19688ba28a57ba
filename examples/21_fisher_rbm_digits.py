"""Digits."""

import sys

import numpy as np
from _rbm import NAMES, digits, film, judge, tile, train, tuned
from _style import options, plt, save

FULL = "--full" in sys.argv
RATES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
COLUMNS = ("log-likelihood", "by AIS", "AIS error", "Fisher score", "sliced Wasserstein")


def main():
    if FULL:
        sys.argv.remove("--full")
    args = options(__doc__)
    seeds, epochs, sweeps = (1, 4, 20) if args.quick else (5, 60, 200) if FULL else (2, 40, 200)
    rows, deviation = digits(mnist=FULL)
    hidden, side, rates = (30, 28, RATES[:4]) if FULL else (20, 8, RATES[2:])
    test, valid, rows = np.split(rows, [len(rows) // 5, 3 * len(rows) // 10])
    print(f"{rows.shape[1]} × {hidden} units, {len(rows)} rows, pixels over {deviation:.3f}")

    def fit(method, rate, seed, epochs=epochs):
        settings = {"learning_rate": rate, "epochs": epochs, "random_state": seed}
        return train(method, hidden, rows, **settings)

    best, fitted = {}, {}
    for method in NAMES:
        found = tuned(lambda rate, method=method: fit(method, rate, 9), valid, rates)
        best[method] = max(found, key=lambda rate: found[rate])
        print(
            f"{NAMES[method]}: rate {best[method]} of", {r: round(v, 2) for r, v in found.items()}
        )
    each = {m: np.median(fit(m, best[m], 8, 5).history_["seconds"]) for m in NAMES}
    longer = round(epochs * each["cd"] / each["fisher"])
    plans = {NAMES[m]: (m, epochs) for m in NAMES}
    plans[f"Fisher score, {longer / epochs:.1f} × the epochs"] = ("fisher", longer)
    print(f"{'':36}{'gradients':>10}{'seconds':>9}", *(f"{c:>20}" for c in COLUMNS))
    for name, (method, count) in plans.items():
        models = [fit(method, best[method], seed, count) for seed in range(seeds)]
        fitted.setdefault(method, models[0])
        table = [judge(model, test, sweeps) for model in models]
        means = [(np.mean([t[c] for t in table]), np.std([t[c] for t in table])) for c in COLUMNS]
        seconds = np.mean([t["seconds"] for t in table])
        numbers = "".join(f"{f'{mean:.2f} ± {sd:.2f}':>21}" for mean, sd in means)
        print(f"{name:36}{count * (len(rows) // 100):10d}{seconds:9.2f}{numbers}", flush=True)

    pictures = {"held-out digits": test[:20]}
    for method, model in fitted.items():
        draws = model.reconstruct(model.sample(20, gibbs_steps=5 * sweeps))
        pictures[f"drawn from the machine by {NAMES[method]}"] = draws
    figure, axes = plt.subplots(4, 1, figsize=(7.2, 5.6))
    for ax, (title, images) in zip(axes, pictures.items(), strict=True):
        ax.imshow(tile(images, side, 10), cmap="Greys", vmin=0, vmax=1 / deviation)
        ax.set(title=title, xticks=[], yticks=[])
    save(figure, args, "21_fisher_rbm_digits")
    frames = (1, 2) if args.quick else (1, 2, 4, 7, 11, 17, 26, 40)
    film(args.output / "21_fisher_rbm_digits.gif", rows, hidden, best, frames)


if __name__ == "__main__":
    main()
