# Every target makes what it needs (a virtual environment in the tree) and asks nothing of the user.
#
#   make demo          an agent and the daemon are killed; nothing is lost, and the next agent is told what to do
#   make test          the tests, on this Python
#   make check         what a change must pass: lint, layout, import contracts, types, fast tests
#
#   make lint, types   the parts of check              make format       let ruff lay the code out
#   make test-fast     tests that are not marked slow  make test-slow    the others
#   make test-alone    those that measure time or memory: on a machine that does nothing else
#   make test-all      the tests of this tree on Python 3.11, 3.12 and 3.13, as far as this machine has them
#   make adapters      every adapter in an environment of its own with its framework (ADAPTERS=langgraph: one)
#   make adapters-quick  three of them, killed at fewer points    make adapters-cost    what a step costs, idle machine
#   make bitflips      flip every bit of a log, one at a time, in minutes; STEP=64 flips every 64th
#   make crash         every promise on durability, proven at every point: 25 minutes (NAMES=kills: one proof)
#   make crash-quick   the same at fewer points        make crash-release   the long figures: hours
#   make mutants       which faults in recovery and framing no test would notice: minutes (NAMES=index, SAMPLE=50)
#   make golden        write the golden files anew from the code; then read the diff
#   make docs          write the generated tables of PROTOCOL.md and ERRORS.md anew; make man: the manual pages
#   make browser       exported pages in a headless Chromium (Debian's; installed if missing, as root)
#   make viewers       ten viewers of a session that grows by 1 GB: the daemon's memory stays flat, nobody misses an event
#   make pictures      the README's pictures, made anew from a real run
#   make build         sdist and wheel, in dist/       make install-units   systemd units for this venv's dshd
#   make fuzz          hostile bytes and traffic, 2 million    make soak          64 agents, killed again and again, 30 min
#   make soak-quick    the same in two minutes
#   make clean         remove what these targets made
#
# TESTS_OF="tests/storage …" has test-all run only these. PYTHON=... chooses the interpreter (3.11 or newer) when the environment is made.

.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
SOURCES := daemon client protocol tests
PYTEST := $(BIN)/python -m pytest -q

# Most tests wait for processes: a few at a time. Those that measure time or memory have a target of their own.
JOBS ?= 3
TOGETHER := -n $(JOBS) --dist loadscope --no-loadscope-reorder

# The first interpreter on PATH that runs and is new enough.
PYTHON ?= $(firstword $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p; done) python3)

# ASYNC124: handlers and test doubles have one shape, whether they wait or not. ASYNC104: storage has no event loop.
NOT_ASYNC := -e ASYNC124 -e 'daemon/dshd/storage/.*ASYNC104'

# One environment, filled as far as a target needs: the program, the tests' tools, everything.
RUN := $(VENV)/.run
TESTS := $(VENV)/.tests
DEV := $(VENV)/.dev

# Hundreds of daemons are started: what one has compiled is kept for the others.
unexport PYTHONDONTWRITEBYTECODE

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

# Names after ADAPTERS= choose; see .ci/adapters.
ADAPTERS ?=

.PHONY: help mutants crash crash-quick crash-release bitflips browser viewers pictures adapters adapters-quick adapters-cost demo test test-fast test-slow test-alone test-all check lint types format golden docs man build install-units fuzz soak soak-quick clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed -n '1,25p'

# An environment that is filled further, and not older than pyproject.toml, needs no second visit.
$(RUN): pyproject.toml
	@[ $(TESTS) -nt pyproject.toml ] || .ci/venv "$(PYTHON)" $(VENV)
	@touch $@

$(TESTS): pyproject.toml
	@[ $(DEV) -nt pyproject.toml ] || .ci/venv "$(PYTHON)" $(VENV) tests
	@touch $@

$(DEV): pyproject.toml
	@.ci/venv "$(PYTHON)" $(VENV) dev
	@touch $@ $(TESTS)

demo: $(RUN)
	@$(BIN)/python client/examples/demo/run.py

test: $(TESTS)
	@$(PYTEST) $(TOGETHER) -m "not alone"

test-alone: $(TESTS)
	@$(PYTEST) -m alone

test-fast: $(TESTS)
	@$(PYTEST) $(TOGETHER) -m "not slow and not alone"

test-slow: $(TESTS)
	@$(PYTEST) $(TOGETHER) -m "slow and not alone"

test-all:
	@.ci/test-all $(TOGETHER) -m "not alone and not slow" $(TESTS_OF)

check: lint types test-fast

lint: $(DEV)
	@$(BIN)/ruff check --quiet $(SOURCES)
	@$(BIN)/ruff format --check --quiet $(SOURCES) || { echo "not laid out as ruff does: make format"; exit 1; }
	@$(BIN)/lint-imports --no-logo
	@! grep -rlE --include='*.py' 'async (def|with|for) ' $(SOURCES) | xargs $(BIN)/flake8-async | grep -v $(NOT_ASYNC)
	@$(BIN)/codespell $(SOURCES) systemd .ci .changes Makefile *.md

types: $(DEV)
	@$(BIN)/mypy
	@$(BIN)/pyright

format: $(DEV)
	@$(BIN)/ruff check --fix --quiet $(SOURCES) || true
	@$(BIN)/ruff format --quiet $(SOURCES)

adapters:
	@.ci/adapters "$(PYTHON)" $(ADAPTERS)

adapters-quick:
	@.ci/adapters "$(PYTHON)" --quick $(ADAPTERS)

adapters-cost:
	@.ci/adapters "$(PYTHON)" --cost $(ADAPTERS)

bitflips: $(TESTS)
	@PYTHONPATH=tests $(BIN)/python -m crash.bitflips $(STEP)

crash: $(TESTS)
	@PYTHONPATH=tests $(BIN)/python -m crash.run --size full $(NAMES)

crash-quick: $(TESTS)
	@PYTHONPATH=tests $(BIN)/python -m crash.run --size quick $(NAMES)

crash-release: $(TESTS)
	@PYTHONPATH=tests $(BIN)/python -m crash.run --size release $(NAMES)

mutants: $(TESTS)
	@PYTHONPATH=tests $(BIN)/python -m crash.mutants $(if $(SAMPLE),--sample $(SAMPLE)) $(NAMES)

golden: $(TESTS)
	@$(BIN)/python -m tests.golden.write

docs: $(RUN)
	@$(BIN)/python -m tests.golden.docs

man: $(RUN)
	@$(BIN)/python -m tests.golden.man

# Pages and pictures are left in BROWSER_DIR to be looked at; they are not part of the tree. .ci/run has this step where a
# Chromium is there (some 15 s); it installs none: the package and what it needs take longer than the step is worth there.
BROWSER_DIR ?= /tmp/dshd-browser

browser: $(TESTS)
	@tests/browser/chromium-present
	@PYTHONPATH=tests $(BIN)/python -m browser.look --to "$(BROWSER_DIR)"

viewers: $(TESTS)
	@DSHD_VIEWED_MB=1000 $(PYTEST) -o faulthandler_timeout=900 -m alone tests/cli/test_many_viewers.py

pictures: $(TESTS)
	@tests/browser/chromium-present
	@PYTHONPATH=tests $(BIN)/python -m browser.pictures

build: $(DEV)
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist . >/dev/null
	@ls dist

install-units: $(RUN)
	@$(BIN)/dshd install

# A million cases of traffic, half an hour on a processor that does nothing else; SEED=... begins with that one.
# What reads a session from disk is fuzzed first: a million more.
fuzz: $(TESTS)
	@PYTHONPATH=tests $(BIN)/python -m fuzz.storage $(if $(SEED),--seed $(SEED))
	@$(BIN)/python -m tests.fuzz.run $(if $(SEED),--seed $(SEED))

# The daemon's memory and descriptors must stay flat, every seq be kept, and the figures agree with the logs.
soak: $(TESTS)
	@$(BIN)/python -m tests.soak.run --seconds 1800

soak-quick: $(TESTS)
	@$(BIN)/python -m tests.soak.run --seconds 120

clean:
	@rm -rf $(VENV) .venv-3.* .venv-adapters-* dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
