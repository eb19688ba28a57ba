"""Time one statement in a fresh process: `python -m tests.bench.workers.imports STATEMENT`."""

import sys
import time

from tests.bench.serve import open_stdout

if __name__ == "__main__":
    say = open_stdout()
    before = len(sys.modules)
    since = time.perf_counter()
    exec(sys.argv[1])
    say({"import_s": time.perf_counter() - since, "modules": len(sys.modules) - before})
