"""The limit on threads of BLAS holds while it should, and not a moment longer."""

import threading

import numpy as np  # whose library is limited
from threadpoolctl import ThreadpoolController, threadpool_info

import samplekit as sk
from samplekit.core import cores
from samplekit.core.cores import one_thread
from samplekit.sampling import loop


def threads():
    return {i["filepath"]: i["num_threads"] for i in threadpool_info() if i["user_api"] == "blas"}


def in_a_thread(work):
    worker = threading.Thread(target=work)
    worker.start()
    worker.join()


def test_the_limit_is_lifted():
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        before = threads()
        assert set(before.values()) == {2}
        with one_thread():
            inside = threads()
            with one_thread():  # as a diagnosis within a run
                pass
            in_a_thread(one_thread().__enter__)  # one that never leaves
            assert threads() == inside
        assert threads() == before
    known = [lib for lib in cores._libraries().lib_controllers if lib.user_api == "blas"]
    assert {inside[lib.filepath] for lib in known} == {1}


def test_a_run_learns_its_metric_on_one_thread(monkeypatch):
    """And leaves the library as it was, which it did not when its threads set the limit."""
    seen = []
    advance = loop.Loop._advance

    def watched(self, pool):
        seen.append(threads())
        advance(self, pool)

    monkeypatch.setattr(loop.Loop, "_advance", watched)
    settings = {"chains": 4, "warmup": 200, "draws": 10, "progress": False}
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        before = threads()
        sk.sample(sk.targets.gaussian(np.zeros(40)), sk.NUTS(metric="dense"), **settings)
        sk.sample(sk.targets.gaussian(np.zeros(2)), sk.NUTS(metric="dense"), **settings)
        after = threads()
    assert 1 in seen[0].values()
    assert set(seen[1].values()) == {2}  # too few rows to matter
    assert {path: after[path] for path in before} == before
