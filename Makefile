# Needs make and Python 3.11+; everything else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Of each kind of run in `make soak`.
SOAK_MINUTES ?= 30

.DEFAULT_GOAL := help
.PHONY: help setup demo dev dashboard compose-env check test test-oldest soak lint docs bench clean

help: ## show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv and install everything into it

demo: $(READY) ## watch events flow from a transaction to a handler (under a minute, exit 0 if every event arrived)
	$(BIN)/relay demo

dev: $(READY) ## run servers, workers, scheduler and the sample handler until Ctrl-C
	$(BIN)/relay dev --samples

dashboard: $(READY) ## serve dramatiq-dashboard at 127.0.0.1:8086, on the system that `make dev` runs in another shell
	@test -f .relay/environment || { echo 'nothing runs here: make dev, in another shell'; exit 1; }
	. .relay/environment && $(BIN)/python -m relay.devstack.dashboard

compose-env: .env ## write .env, the passwords for docker-compose.yml, unless it is there

# Each begins with a letter: nats-server would take digits for a number.
.env:
	@umask 077; \
	for name in POSTGRES_PASSWORD RELAY_OWNER_PASSWORD RELAY_PASSWORD APPLICATION_PASSWORD \
	  RELAY_NATS_PASSWORD RELAY_NATS_ADMIN_PASSWORD RELAY_REDIS_PASSWORD; do \
	  printf '%s=p%s\n' "$$name" "$$(od -An -N 16 -tx1 /dev/urandom | tr -d ' \n')"; \
	done > $@.new && mv $@.new $@

check: $(READY) lint ## check a change in seconds: style, types, imports, and the tests of values and rules
	$(BIN)/python -m pytest -q -n 2 tests/unit

test: $(READY) ## run the tests on real servers; a part of them: make test PYTEST_ARGS='tests/unit -k subject'
ifdef PYTEST_ARGS
	$(BIN)/python -m pytest $(PYTEST_ARGS)
else
# More of them than there are cores: they wait more than they compute.
	$(BIN)/python -m pytest -q -n 6 tests/unit tests/repository tests/contract tests/integration
# Whole fleets; the tests of a file one after the other, the files in the order of tests/conftest.py.
	$(BIN)/python -m pytest -q -n 4 --dist loadfile --no-loadscope-reorder \
	  tests/acceptance tests/chaos --ignore tests/chaos/test_chaos.py
# Alone: how soon a fleet recovers is part of what is judged.
	$(BIN)/python -m pytest -q tests/chaos/test_chaos.py
endif

# Debian 12 has them: apt install postgresql-15 redis-server
test-oldest: $(READY) ## run the tests that share servers on the oldest ones: PostgreSQL 15 and Redis 7
	JETRELAY_TEST_SERVERS=oldest $(BIN)/python -m pytest -q -n 4 tests/contract tests/integration \
	  --ignore tests/integration/test_console_browser.py --ignore tests/integration/test_dashboard.py

soak: $(READY) ## break everything for hours: 30 minutes of each kind of run; less: make soak SOAK_MINUTES=10
# Every kind of fault, each many times; what never heals; nodes of a cluster; a PostgreSQL that fails over.
	$(BIN)/relay chaos --minutes $(SOAK_MINUTES) --rate 40 $(SOAK_ARGS)
	$(BIN)/relay chaos --minutes $(SOAK_MINUTES) --rate 40 --liveness $(SOAK_ARGS)
	$(BIN)/relay chaos --minutes $(SOAK_MINUTES) --rate 40 --topology cluster $(SOAK_ARGS)
	$(BIN)/relay chaos --minutes $(SOAK_MINUTES) --rate 40 --topology failover $(SOAK_ARGS)
# The whole of each matrix of which `make test` runs a sample.
	$(BIN)/python -m pytest -q -m 'soak or chaos' tests/acceptance tests/chaos

lint: $(READY) ## check style, types and who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY) ## build the documentation into build/site, and check its links, anchors and pictures
	$(BIN)/python -m docsite.build

bench: $(READY) ## measure speed against hand-written loops; less of it: make bench BENCH_ARGS='--only drain'
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

clean: ## remove .venv, the development servers' data and all caches
	rm -rf .venv .relay .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last: an interrupted installation is repeated.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "jetrelay needs Python 3.11 or newer as '$(PYTHON)'; try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "'$(PYTHON)' cannot create virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
# Without its requirements: it asks for an older dramatiq, and works with ours.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps dramatiq-dashboard==0.4.0
# Likewise: it asks for an older typer. The test of the API generates a client with it.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps openapi-python-client==0.29.1
	@touch $@
