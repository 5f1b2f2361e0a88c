PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
export POWERTRIP_DATA ?= $(abspath ../shared/data)
export OMP_NUM_THREADS ?= 1

.PHONY: help
help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("PowerTrip needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

.PHONY: install
install: $(INSTALLED)  ## Make .venv and install the project with its pinned dependencies

.PHONY: train
train: $(INSTALLED)  ## Train the default scenario: eight sites on this machine (ARGS="key.sub=value ...")
	$(BIN)/torchrun --nproc_per_node=8 -m powertrip.train $(ARGS)

.PHONY: compare
compare: $(INSTALLED)  ## The default scenario under every kind of policy, three seeds (40 minutes)
	$(BIN)/python -m benchmarks.compare $(ARGS)

REPRODUCTION := runs/reproduction
EXPERIMENTS := $(wildcard configs/experiments/*.yaml)

.PHONY: reproduce reproduce-quick
reproduce-quick: QUICK := --quick
reproduce-quick: reproduce  ## The publications' figures at quick size, into runs/reproduction/ (half an hour)
reproduce: $(INSTALLED)  ## The same at full size (a day; what is finished is not run again)
	@for file in $(EXPERIMENTS); do \
	    echo "== $$file"; \
	    $(BIN)/powertrip experiment $$file $(QUICK) --out $(REPRODUCTION)/$$(basename $$file .yaml) $(ARGS) || exit 1; \
	done

.PHONY: uml
uml:  # a kernel with sch_netem, for the tests of real links
	@{ command -v linux.uml && command -v cc; } >/dev/null || { \
	    [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    export DEBIAN_FRONTEND=noninteractive && apt-get update -qq >/dev/null && \
	    apt-get install -y -qq user-mode-linux gcc libc6-dev >/dev/null; \
	} || echo "User-Mode Linux is not installed, so tests of shaped links may be skipped:" \
	    "apt-get install user-mode-linux gcc libc6-dev"

.PHONY: test
test: lint types uml $(INSTALLED)  ## Lint, types and all tests
	$(BIN)/pytest $(ARGS)

.PHONY: test-links
test-links: uml $(INSTALLED)  ## The tests of netem alone, which make namespaces and measure links
	$(BIN)/pytest tests/netem $(ARGS)

.PHONY: chaos
chaos: $(INSTALLED)  ## A real run of eight sites under faults of every kind (20 minutes; ARGS="--seed 7")
	$(BIN)/powertrip chaos configs/chaos.yaml $(ARGS)

.PHONY: fuzz
fuzz: $(INSTALLED)  ## Everything that is read, damaged in 2000 ways a test (an hour; ARGS="-k event_log")
	POWERTRIP_FUZZ=$${POWERTRIP_FUZZ:-2000} $(BIN)/pytest tests/fuzz --timeout 3600 $(ARGS)

.PHONY: lint
lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

.PHONY: types
types: $(INSTALLED)
	$(BIN)/mypy

.PHONY: format
format: $(INSTALLED)  ## Format the code and mend what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench-selection
bench-selection: $(INSTALLED)  ## How long a decision takes, up to 100,000 sites
	$(BIN)/python -m benchmarks.selection_time $(ARGS)

.PHONY: bench-sensitivity
bench-sensitivity: $(INSTALLED)  ## How much the settings of the decisions matter, on simulated learning curves
	$(BIN)/python -m benchmarks.sensitivity $(ARGS)

.PHONY: bench-round
bench-round: $(INSTALLED)  ## The share of a round that is neither training nor exchange
	$(BIN)/python -m benchmarks.round_overhead $(ARGS)

.PHONY: bench-recovery
bench-recovery: $(INSTALLED)  ## How soon rounds go on after a site was killed or frozen, or a link cut
	$(BIN)/python -m benchmarks.recovery $(ARGS)

.PHONY: bench-partition
bench-partition: $(INSTALLED)  ## Eight sites cut into five and three, twice: one side goes on
	$(BIN)/python -m benchmarks.partition $(ARGS)

.PHONY: bench-starts
bench-starts: $(INSTALLED)  ## Fifty starts and stops in a row, each of which leaves nothing behind
	$(BIN)/python -m benchmarks.starts $(ARGS)

.PHONY: bench-generations
bench-generations: $(INSTALLED)  ## Whether 200 generations leave descriptors, threads, keys or memory behind
	$(BIN)/python -m benchmarks.generations $(ARGS)

FLOWER := .venv-flower
$(FLOWER)/.installed: constraints.txt
	$(PYTHON) -m venv --clear $(FLOWER)
	grep -E '^(torch|numpy)==' constraints.txt > $(FLOWER)/constraints.txt
	$(FLOWER)/bin/pip install --quiet --constraint $(FLOWER)/constraints.txt 'flwr[simulation]==1.42.0' torch numpy
	touch $@

.PHONY: bench-flower
bench-flower: $(INSTALLED) $(FLOWER)/.installed  ## The same simulated training by PowerTrip, Flower and a plain loop
	$(BIN)/python -m benchmarks.flower_simulation --flower $(FLOWER)/bin/python $(ARGS)

.PHONY: clean
clean:  ## Remove what was installed and built, but no runs
	rm -rf $(VENV) $(FLOWER) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
