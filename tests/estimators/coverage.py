"""Do 95 % intervals cover 95 %? `python -m tests.estimators.coverage` writes the table.

2,000 data sets of 5,000 rows at a known truth, each fitted with the family's default weight; all
fits of a family are one compiled program.
"""

import argparse
import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from samplekit.estimators import families
from samplekit.estimators.conditional import ConditionalFamily
from samplekit.estimators.domains import as_domain
from samplekit.estimators.moments import Model, estimate
from tests.conftest import DEFAULT_SEED
from tests.estimators.table import CASES

REPLICATES, ROWS = 2000, 5000
LEAST, MOST = 0.93, 0.97

# θ(x) = B·(1, x), x uniform on (0, 1); row 18 of the formula sheet.
CONDITIONAL = {
    "gaussian": np.array([[0.5, -1.0], [0.8, 1.7]]),
    "gamma": np.array([[-0.3, 1.5], [1.0, 2.0]]),
}


class Experiment(NamedTuple):
    """Data sets, the model fitted to each, and what should come out."""

    title: str
    model: Model
    data: np.ndarray  # (replicates, rows, columns)
    usual: Any
    dim: int
    labels: list[str]
    truth: np.ndarray


@functools.partial(jax.jit, static_argnames=("usual", "dim"))
def replicate(model, data, usual, dim):
    """Return estimates and standard errors, natural then usual parameters, of every data set."""

    def one(rows):
        theta, covariance = estimate(model, rows)

        def flat(t):
            return jnp.concatenate([t, *(jnp.ravel(v) for v in usual(t, dim).values())])

        slopes = jax.jacfwd(flat)(theta)
        return flat(theta), jnp.sqrt(jnp.einsum("ai,ij,aj->a", slopes, covariance, slopes))

    return jax.lax.map(one, data, batch_size=4)


def draw_conditional(name, seed, n):
    """Return covariates and responses."""
    random = np.random.default_rng(seed)
    x = random.uniform(size=(n, 1))
    a, b = CONDITIONAL[name] @ np.stack([np.ones(n), x[:, 0]])
    if name == "gaussian":
        return x, random.normal(a / b, 1 / np.sqrt(b))
    return x, random.gamma(a + 1, 1 / b)


def _no_usual(theta, dim):
    return {}


def of_family(name, replicates, n, seed):
    """Return the experiment of a row of the table of families."""
    family, params = CASES[name]
    rows = family.draw(seed, replicates * n, **params)
    rows = as_domain(family.family.domain).check(rows, 0)
    dim = rows.shape[1]
    theta = family.natural(**params)
    with jax.enable_x64(True):
        values = family.family.usual(jnp.asarray(theta), dim)
        truth = np.concatenate([theta, *(np.ravel(v) for v in values.values())])
        model = family._setup(dim).model
    labels = list(family.family.names(dim))
    for label, value in values.items():
        places = np.ndindex(np.shape(value))
        labels += [f"{label}[{','.join(map(str, at))}]" if at else label for at in places]
    title = f"`{family.family!r}`" + (f", {_brief(params)}" if _brief(params) else "")
    data = rows.reshape(replicates, n, dim)
    return Experiment(title, model, data, family.family.usual, dim, labels, truth)


def of_conditional(name, replicates, n, seed):
    """Return the experiment of a family whose parameters depend on a covariate."""
    x, y = draw_conditional(name, seed, replicates * n)
    fitted = ConditionalFamily(getattr(families, name)()).fit(x[:100], y[:100])
    with jax.enable_x64(True):
        model = fitted._setup(1).model
    data = np.stack([y, np.ones_like(y), x[:, 0]], axis=1).reshape(replicates, n, 3)
    title = f"`ConditionalFamily({name}())`, one covariate"
    truth = CONDITIONAL[name].ravel()
    return Experiment(title, model, data, _no_usual, 1, fitted.statistic_names_, truth)


EXPERIMENTS = {
    **{name: functools.partial(of_family, name) for name in CASES},
    **{f"conditional-{name}": functools.partial(of_conditional, name) for name in CONDITIONAL},
}


def coverage(experiment):
    """Return the share of data sets whose 95 % interval holds the truth, by parameter."""
    e = experiment
    with jax.enable_x64(True):
        found, errors = map(np.asarray, replicate(e.model, e.data, e.usual, e.dim))
    inside = np.abs(found - e.truth) <= stats.norm.ppf(0.975) * errors
    free = errors.mean(axis=0) > 1e-9  # a partial correlation with itself is 1
    shares = inside.mean(axis=0)
    return {name: float(s) for name, s, f in zip(e.labels, shares, free, strict=True) if f}


def _brief(params):
    """Write the truth, where it is numbers."""
    parts = [f"{k} {v:g}" for k, v in params.items() if np.ndim(v) == 0]
    return ", ".join(parts)


def table(names: Sequence[str], replicates: int, n: int, seed: int) -> Iterator[str]:
    """Measure the named experiments and yield the lines of the table, in Markdown."""
    yield "| family and truth | parameters | least coverage | largest |"
    yield "|---|---|---|---|"
    for name in names:
        experiment = EXPERIMENTS[name](replicates, n, seed)
        found = coverage(experiment)
        low, high = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
        good = found[low] > LEAST and found[high] < MOST
        ends = [f"{found[name]:.1%} ({name})" for name in (low, high)]
        shown = f"| {ends[0]} | {ends[1]} |" if len(found) > 1 else f"| {found[low]:.1%} | |"
        yield f"| {experiment.title}{'' if good else ' **outside**'} | {len(found)} {shown}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.estimators.coverage")
    parser.add_argument("names", nargs="*", default=list(EXPERIMENTS), metavar="NAME")
    parser.add_argument("--replicates", type=int, default=REPLICATES)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    given = parser.parse_args()
    for line in table(given.names, given.replicates, given.rows, given.seed):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
