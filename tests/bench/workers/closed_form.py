"""Fit one family: `python -m tests.bench.workers.closed_form CONTENDER [ARGUMENT]`."""

import math
import sys
from pathlib import Path

import numpy as np

from tests.bench.serve import serve

GRAPH_ROWS, GRAPH_COLUMNS = 100_000, 50
GENERIC_ROWS, GENERIC_COLUMNS, GENERIC_STATISTICS = 1_000_000, 5, 20
SCIPY_ROWS = 100_000
STREAM_CHUNK = 1_000_000
MIB = 2**20


def memory(field):
    """Return a field of /proc/self/status in bytes: VmRSS is now, VmHWM the most so far."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024  # in kB


def peak_of(call):
    """Return by how many MiB memory rose above the present while a function ran."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # VmHWM starts anew
    before = memory("VmRSS")
    call()
    return (memory("VmHWM") - before) / MIB


def repeated(call, describe=lambda result: {}):
    """Return the worker of a call that was warmed up once."""
    call()

    def run(_):
        result = call()
        return lambda: describe(result)

    return run


# A Gaussian graph -----------------------------------------------------------------------------


def graph_rows():
    """Return rows with a chain for a graph."""
    random = np.random.default_rng(0)
    chain = np.eye(GRAPH_COLUMNS) + 0.4 * np.eye(GRAPH_COLUMNS, k=1)
    return random.normal(size=(GRAPH_ROWS, GRAPH_COLUMNS)) @ chain


def edge(precision):
    return {"value": float(precision[0, 1])}


def graph_samplekit():
    from samplekit.estimators import families

    rows, model = graph_rows(), families.gaussian_graphical_model()
    return repeated(lambda: model.fit(rows), lambda m: edge(m.precision_)), {}


def graph_product():
    rows = graph_rows()
    return repeated(lambda: rows.T @ rows), {}


def graph_mixture():
    from sklearn.mixture import GaussianMixture

    rows, model = graph_rows(), GaussianMixture(1)
    return repeated(lambda: model.fit(rows), lambda m: edge(m.precisions_[0])), {}


def graph_lasso():
    from sklearn.covariance import GraphicalLasso

    rows, model = graph_rows(), GraphicalLasso(alpha=0.01)
    return repeated(lambda: model.fit(rows), lambda m: edge(m.precision_)), {}


# Statistics of one's own ------------------------------------------------------------------------


def generic_rows():
    return np.random.default_rng(0).normal(size=(GENERIC_ROWS, GENERIC_COLUMNS))


def generic_estimator():
    """Return the estimator, compiled, and its rows."""
    import jax.numpy as jnp

    from samplekit.estimators.exponential_family import ExponentialFamily

    def statistics(y):
        return jnp.concatenate([y, -(y**2), jnp.sin(y), -(y**4)])

    rows, model = generic_rows(), ExponentialFamily(statistics, errors="none")
    return model.fit(rows[:10_000]), rows


def generic_samplekit():
    model, rows = generic_estimator()
    peak = peak_of(lambda: model.fit(rows))
    return repeated(lambda: model.fit(rows), lambda m: {"value": float(m.theta_[5])}), {
        "peak_mib": peak
    }


def slopes_and_bends(y):
    """Return the nonzero derivatives of (y, −y², sin y, −y⁴), each (rows, columns)."""
    one = np.ones_like(y)
    cube = y**3
    return (one, -2 * y, np.cos(y), -4 * cube), (0 * one, -2 * one, -np.sin(y), -12 * y**2)


def generic_numpy():
    """The same fit written by hand, chunk by chunk: dense J, one product a chunk."""
    rows, size = generic_rows(), 8192
    places = [np.arange(GENERIC_COLUMNS) + i * GENERIC_COLUMNS for i in range(4)]
    axes = np.arange(GENERIC_COLUMNS)

    def fit():
        gamma = np.zeros((GENERIC_STATISTICS, GENERIC_STATISTICS))
        g = np.zeros(GENERIC_STATISTICS)
        jacobian = np.zeros((size, GENERIC_COLUMNS, GENERIC_STATISTICS))
        for start in range(0, len(rows), size):
            y = rows[start : start + size]
            slopes, bends = slopes_and_bends(y)
            for place, slope, bend in zip(places, slopes, bends, strict=True):
                jacobian[: len(y), axes, place] = slope
                g[place] -= bend.sum(axis=0)
            flat = jacobian[: len(y)].reshape(-1, GENERIC_STATISTICS)
            gamma += flat.T @ flat
        return np.linalg.solve(gamma, g)

    return repeated(fit, lambda theta: {"value": float(theta[5])}), {}


def generic_product():
    """Γ alone, from a J that is there: 5·10⁶ × 20."""
    rows = generic_rows()
    jacobian = np.zeros((len(rows), GENERIC_COLUMNS, GENERIC_STATISTICS))
    for i, slope in enumerate(slopes_and_bends(rows)[0]):
        place = np.arange(GENERIC_COLUMNS)
        jacobian[:, place, place + i * GENERIC_COLUMNS] = slope
    flat = jacobian.reshape(-1, GENERIC_STATISTICS)
    return repeated(lambda: flat.T @ flat), {}


# Named families of one variable -------------------------------------------------------------------


def draws(family):
    random = np.random.default_rng(0)
    return {
        "gamma": lambda: random.gamma(3.0, 0.5, SCIPY_ROWS),
        "lognormal": lambda: random.lognormal(0.4, 0.6, SCIPY_ROWS),
        "von_mises": lambda: random.vonmises(0.7, 2.5, SCIPY_ROWS),
    }[family]()


def named_samplekit(family):
    from samplekit.estimators import families

    rows, model = draws(family)[:, None], getattr(families, family)()
    key = {"gamma": "shape", "lognormal": "log_sd", "von_mises": "concentration"}[family]
    return repeated(lambda: model.fit(rows), lambda m: {"value": m.params_[key]}), {}


def named_errors(family):
    """Fit, with the standard errors of every parameter."""
    from samplekit.estimators import families

    rows, model = draws(family)[:, None], getattr(families, family)()
    return repeated(lambda: model.fit(rows).params_errors_), {}


def named_scipy(family):
    from scipy import stats

    y = draws(family)
    fit = {
        "gamma": lambda: stats.gamma.fit(y, floc=0),
        "lognormal": lambda: stats.lognorm.fit(y, floc=0),
        "von_mises": lambda: stats.vonmises.fit(y, fscale=1),
    }[family]
    return repeated(fit, lambda found: {"value": float(found[0])}), {}


# A long stream ------------------------------------------------------------------------------------


def stream(count, chunk=STREAM_CHUNK):
    """Fit a gamma family to chunks that are drawn on the way; the errors too."""
    from samplekit.estimators import families

    count, model = int(float(count)), families.gamma()

    def chunks(total):
        random = np.random.default_rng(0)
        for _ in range(math.ceil(total / chunk)):
            yield random.standard_exponential((chunk, 1))

    model.fit(chunks(chunk))

    def run(_):
        peak = peak_of(lambda: model.fit(chunks(count)))
        error = model.params_errors_["shape"]
        return lambda: {"peak_mib": peak, "value": model.params_["shape"], "standard_error": error}

    return run, {}


if __name__ == "__main__":
    CONTENDERS = {
        "graph-samplekit": graph_samplekit,
        "graph-product": graph_product,
        "graph-mixture": graph_mixture,
        "graph-lasso": graph_lasso,
        "generic-samplekit": generic_samplekit,
        "generic-numpy": generic_numpy,
        "generic-product": generic_product,
        "named-samplekit": named_samplekit,
        "named-errors": named_errors,
        "named-scipy": named_scipy,
        "stream": stream,
    }
    name, *arguments = sys.argv[1:]
    serve(lambda: CONTENDERS[name](*arguments))
