"""The worker's side of the harness; light, and Python 3.11, so that every peer can use it.

A worker speaks JSON lines on its real stdout. Whatever else prints goes to stderr.
"""

import gc
import json
import os
import sys
import time
import traceback


def open_stdout():
    """Return a function that sends one JSON line, and point stdout at stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(message):
        out.write(json.dumps(message, default=float) + "\n")
        out.flush()

    return say


def serve(setup):
    """Call `setup() -> (run, facts)` once, then `run(round)` for each number read from stdin.

    `run` returns a function that computes its metrics after the clock has stopped.
    """
    say = open_stdout()
    try:
        since = time.perf_counter()
        run, facts = setup()
        say({"setup_s": time.perf_counter() - since, **facts})
        for line in sys.stdin:
            gc.collect()
            cpu, since = time.process_time(), time.perf_counter()
            result = run(int(line))
            wall, cpu = time.perf_counter() - since, time.process_time() - cpu
            metrics = result()
            say({"wall_s": wall, "cores": cpu / wall, **metrics})
    except Exception as error:
        traceback.print_exc()
        say({"error": f"{type(error).__name__}: {error}"[:300]})
