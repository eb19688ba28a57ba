"""Two processes, each with half of the rows, find the same θ̂ as one with all."""

import json
import socket
import subprocess
import sys

import numpy as np
import pytest

from samplekit.estimators import families
from samplekit.estimators.exponential_family import ExponentialFamily

WORKER = """
import json, sys
import jax
jax.distributed.initialize("localhost:" + sys.argv[1], 2, int(sys.argv[2]))
import numpy as np
from samplekit.estimators import families
from samplekit.estimators.exponential_family import ExponentialFamily
from tests.estimators.test_processes import data, statistics
rows = data()[int(sys.argv[2]) :: 2]
out = []
for estimator in (ExponentialFamily(statistics), families.gaussian()):
    estimator.fit(rows, devices=jax.devices())
    out.append([estimator.theta_.tolist(), estimator.standard_errors_.tolist()])
    assert estimator.n_samples_seen_ == 2 * len(rows)
print("RESULT" + json.dumps(out))
"""


def data():
    return np.random.default_rng(2).normal(30.0, 1.0, size=(3000, 2))


def statistics(y):
    return -((y - 30.0) ** 4)


@pytest.mark.slow
@pytest.mark.multidevice
def test_two_processes():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(port), str(i)], stdout=subprocess.PIPE, text=True
        )
        for i in range(2)
    ]
    texts = [worker.communicate(timeout=300)[0] for worker in workers]
    found = [json.loads(text.split("RESULT")[1]) for text in texts]
    assert found[0] == found[1]
    one = [ExponentialFamily(statistics).fit(data()), families.gaussian().fit(data())]
    for (theta, errors), expected in zip(found[0], one, strict=True):
        np.testing.assert_allclose(theta, expected.theta_, rtol=1e-10)
        np.testing.assert_allclose(errors, expected.standard_errors_, rtol=1e-8)
