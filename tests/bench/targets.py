"""The five flat log densities of BENCH.md, and the quality of draws from them."""

import numpy as np

NAMES = ("schools", "logreg25", "banana2", "gauss100", "funnel10")


def build(name):
    """Return the dimension and the log density."""
    return {
        "schools": _schools,
        "logreg25": _logistic,
        "banana2": _banana,
        "gauss100": _gaussian,
        "funnel10": _funnel,
    }[name]()


def schools_data():
    """Return effects and standard errors of the eight schools."""
    y = np.array([28, 8, -3, 7, -1, 1, 18, 12], np.float32)
    return y, np.array([15, 10, 16, 11, 9, 11, 10, 18], np.float32)


def logistic_data():
    """Return the design (1000, 25) and the outcomes of the logistic regression."""
    rng = np.random.default_rng(0)
    n, d = 1000, 25
    x = np.c_[np.ones(n), rng.normal(size=(n, d - 1)) @ np.diag(rng.uniform(0.5, 2, d - 1))]
    w = rng.normal(size=d) * 0.5
    y = rng.random(n) < 1 / (1 + np.exp(-x @ w))
    return x.astype(np.float32), y.astype(np.float32)


def _schools():
    import jax.numpy as jnp

    y, sigma = map(jnp.asarray, schools_data())

    def log_density(z):  # mu, log tau, eta_1..8
        mu, log_tau, eta = z[0], z[1], z[2:]
        tau = jnp.exp(log_tau)
        prior = -0.5 * (mu / 5) ** 2 - jnp.log1p((tau / 5) ** 2) + log_tau - 0.5 * eta @ eta
        return prior - 0.5 * jnp.sum(((y - mu - tau * eta) / sigma) ** 2)

    return 10, log_density


def _logistic():
    import jax.numpy as jnp

    x, y = logistic_data()
    signed = jnp.asarray(x * (2 * y - 1)[:, None])

    def log_density(b):
        return -jnp.sum(jnp.logaddexp(0.0, -(signed @ b))) - 0.5 * jnp.sum(b * b)

    return x.shape[1], log_density


def _banana():
    def log_density(z):
        return -(z[0] ** 2) / 200 - 0.5 * (z[1] - 0.03 * (z[0] ** 2 - 100)) ** 2

    return 2, log_density


def _gaussian():
    import jax.numpy as jnp

    d = 100
    q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(d, d)))
    variance = np.logspace(-2, 2, d)  # condition 1e4, rotated: a diagonal metric cannot fix it
    precision = jnp.asarray((q / variance) @ q.T, jnp.float32)
    return d, lambda x: -0.5 * x @ (precision @ x)


def _funnel():
    import jax.numpy as jnp

    def log_density(z):
        v, x = z[0], z[1:]
        return -v * v / 18 - 0.5 * jnp.exp(-v) * (x @ x) - 0.5 * x.size * v

    return 10, log_density


def starts(dim, chains=4):
    """Return standard normal starts for samplers that look for none themselves."""
    return np.random.default_rng(100).normal(size=(chains, dim)).astype(np.float32)


def quality(x):
    """Return the least bulk ESS and the largest R-hat over coordinates of (chain, draw, dim)."""
    from arviz_stats.base.array import array_stats

    x = np.asarray(x, np.float64)
    ess = np.asarray(array_stats.ess(x, chain_axis=0, draw_axis=1, method="bulk"))
    rhat = np.asarray(array_stats.rhat(x, chain_axis=0, draw_axis=1))
    return {"ess": float(ess.min()), "rhat": float(rhat.max())}
