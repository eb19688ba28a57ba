"""A deep belief net is a Pipeline: two machines, each trained on the hidden units of the last.

The lower machine has real visible units and is trained by its Fisher score, the upper one has
binary units and persistent chains; neither sees a label. Above them the same logistic regression
(C = 0.1, for all) as on the pixels. On these small digits, three seeds: the first layer is a little
better than the pixels at every number of labels (0.897 against 0.861 at 100, 0.974 against 0.965 at
1297); the second layer loses from 200 labels on (0.946 at 1297); its lead at 50 is within noise.
"""

import numpy as np
from _rbm import digits
from _style import BLUE, INK, SKY, options, plt, save
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import samplekit as sk


def features(rows, seed, *, quick):
    """Return pixels and both layers' hidden probabilities of all rows, trained without labels."""
    settings = {"epochs": 5 if quick else 30, "progress": False, "random_state": seed}
    lower = sk.GaussBernoulliRBM(128, schedule="linear", **settings)
    upper = sk.BernoulliRBM(128, schedule="linear", batch_size=50, **settings)
    net = make_pipeline(lower, upper).fit(rows)
    return {"pixels": rows, "one layer": net[:1].transform(rows), "two layers": net.transform(rows)}


def accuracy(x, labels, few, seed):
    """Return the accuracy of logistic regression on rows that it has not seen."""
    order = np.random.default_rng(seed).permutation(len(x))
    train, test = order[:few], order[-500:]
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=200))
    return model.fit(x[train], labels[train]).score(x[test], labels[test])


def main():
    args = options(__doc__)
    rows, _ = digits(mnist=False)
    labels = load_digits().target[np.random.default_rng(0).permutation(len(rows))]
    counts, seeds = ((100, 1297), range(1)) if args.quick else ((50, 100, 200, 400, 1297), range(3))
    found = {}
    for seed in seeds:
        for name, x in features(rows, seed, quick=args.quick).items():
            for few in counts:
                found.setdefault((name, few), []).append(accuracy(x, labels, few, seed))
    names = ("pixels", "one layer", "two layers")
    print(f"{'labels':>8}", *(f"{name:>18}" for name in names))
    for few in counts:
        shown = (f"{np.mean(found[n, few]):.3f} ± {np.std(found[n, few]):.3f}" for n in names)
        print(f"{few:8d}", *(f"{text:>18}" for text in shown))

    figure, ax = plt.subplots(figsize=(6.4, 4.0))
    for name, color in zip(names, (INK, SKY, BLUE), strict=True):
        mean = [np.mean(found[name, few]) for few in counts]
        ax.errorbar(counts, mean, [np.std(found[name, few]) for few in counts], color=color,
                    label=name, capsize=3)  # fmt: skip
    ax.set(title="Digits told apart", xlabel="labels", ylabel="accuracy", xscale="log")
    ax.set_xticks(counts, [str(c) for c in counts])
    ax.minorticks_off()
    ax.legend()
    save(figure, args, "22_deep_belief_net")


if __name__ == "__main__":
    main()
