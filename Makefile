# Everything starts here: `make demo` and `make test` set themselves up, alone, in .venv.

# Options: PYTHON=/path/to/python3   the Python that .venv is made from
#          PYTEST_ARGS="-k mala"     arguments for pytest instead of -n 2 (two processes)
#          BENCH_ARGS=...            arguments for the benchmarks
#          SOAK_ARGS=...             arguments for the soak
PYTHON ?=
PYTEST_ARGS ?= -n 2
BENCH_ARGS ?=
SOAK_ARGS ?=
PYTHON_ORIGIN := $(origin PYTHON)
BIN := .venv/bin

.PHONY: help demo test test-slow lint bench bench-quick soak setup clean

help:
	@echo "make demo       sample four targets, print a table, write a report, figures and runs"
	@echo "make test       all checks and the tests"
	@echo "make test-slow  the tests that need longer"
	@echo "make lint       the checks alone: format, lint, types, import layers, spelling"
	@echo "make bench      all benchmarks beside the peers; fails where a committed ratio got worse"
	@echo "make bench-quick  one round of the short ones, in under 5 minutes"
	@echo "make soak       ten minutes of kills, full disks, flipped bits; SOAK_ARGS='--minutes 120'"
	@echo "make clean      remove caches and build products (.venv stays)"
	@echo "Each sets up .venv by itself. PYTHON=/path/to/python3 chooses the Python."

demo: setup
	@$(BIN)/samplekit demo

test: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-slow: setup
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

lint: setup
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m pyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m codespell_lib

bench: setup
	$(BIN)/python -m tests.bench --check $(BENCH_ARGS)

bench-quick: setup
	$(BIN)/python -m tests.bench --quick $(BENCH_ARGS)

soak: setup
	$(BIN)/python -m tests.soak $(SOAK_ARGS)

clean:
	rm -rf .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name .venv -prune -o -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The set-up, in POSIX sh. .venv/.ready is written last and holds what it was made from, so
# the next call only compares. .venv-setup exists while a set-up runs; one that outlives its
# process means a half-made .venv, which is made anew.
define SETUP_SCRIPT
set -eu

key="$$(cat pyproject.toml constraints.txt Makefile | cksum) $$(pwd -P)"
here="$$(pwd -P)/.venv"

suits() {
    "$$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1
}
version() {
    "$$1" -c 'import sys; print(sys.version_info[:2])' 2>/dev/null
}
ready() {
    [ "$$(cat .venv/.ready 2>/dev/null)" = "$$key" ] && .venv/bin/python -c '' 2>/dev/null &&
        { [ -z "$$chosen" ] || [ "$$(version "$$chosen")" = "$$(version .venv/bin/python)" ]; }
}
# A .venv made by hand will do, but not one that is broken, too old or moved from elsewhere.
usable() {
    suits .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1 &&
        grep -qF "$$here" .venv/bin/activate &&
        { [ -z "$$chosen" ] || [ "$$(version "$$chosen")" = "$$(version .venv/bin/python)" ]; }
}
find_python() {
    wanted=$$(cat .python-version 2>/dev/null || echo 3.13)
    pyenv=$${PYENV_ROOT:-$${HOME:-}/.pyenv}
    for candidate in "$${PYTHON:-}" \
        "$$pyenv/versions/$$wanted/bin/python" "$$pyenv/versions/$$wanted".*/bin/python \
        "$$(pyenv which python 2>/dev/null || true)" "python$$wanted" \
        python3.14 python3.13 python3.12 python3 python \
        "$$pyenv"/versions/3.*/bin/python "$${HOME:-}"/.local/share/uv/python/*/bin/python3
    do
        if [ -n "$$candidate" ] && suits "$$candidate"; then
            # The Python beneath, should this one belong to the .venv that is to be replaced.
            "$$candidate" -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))'
            return
        fi
    done
    return 1
}

chosen=
if [ "$$PYTHON_ORIGIN" = "command line" ]; then
    chosen=$$PYTHON
    if ! suits "$$chosen"; then
        echo "PYTHON=$$chosen is not a Python 3.12 or newer with the venv and ensurepip modules." >&2
        exit 1
    fi
fi
ready && exit 0
if ! [ -w . ]; then
    echo "The set-up cannot write into $$(pwd -P)." >&2
    exit 1
fi

interrupted=no
waited=0
until (set -C; echo "$$$$" >.venv-setup) 2>/dev/null; do
    owner=$$(cat .venv-setup 2>/dev/null) || continue
    if [ -n "$$owner" ] && kill -0 "$$owner" 2>/dev/null && [ "$$waited" -lt 900 ]; then
        [ "$$waited" -gt 0 ] || echo "Waiting for another set-up of .venv (process $$owner)."
        waited=$$((waited + 1))
        sleep 1
    else
        rm -f .venv-setup
        interrupted=yes
    fi
done
trap 'exit 130' INT
trap 'exit 143' TERM
if ready; then
    rm -f .venv-setup
    exit 0
fi

if [ "$$interrupted" = no ] && usable; then
    rm -f .venv/.ready
    echo "Bringing .venv up to date."
    .venv/bin/python -m pip install --quiet -c constraints.txt -e '.[dev]' || {
        rm -f .venv-setup
        exit 1
    }
else
    base=$$(find_python) || {
        rm -f .venv-setup
        echo "samplekit needs Python 3.12 or newer with its venv module, and none was found:" \
            "install one (for example python3.13 and python3.13-venv, or pyenv install 3.13)" \
            "or name it, as in make test PYTHON=/path/to/python3." >&2
        exit 1
    }
    echo "Setting up .venv with $$base (once; this takes a few minutes)."
    rm -rf .venv
    "$$base" -m venv .venv
    .venv/bin/python -m pip install -c constraints.txt -e '.[dev]'
fi
printf '%s' "$$key" >.venv/.ready
rm -f .venv-setup
endef
export SETUP_SCRIPT PYTHON PYTHON_ORIGIN

setup:
	@sh -c "$$SETUP_SCRIPT"
