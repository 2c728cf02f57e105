# SPDX-License-Identifier: Apache-2.0
# `make` lists what there is. Every target sets up what it needs.
.DEFAULT_GOAL := help
BIN := .venv/bin
# one solo and one pair lab in all: tests/lab/conftest.py puts the tests of a lab in one group
LAB_TESTS = $(BIN)/python -m pytest -q -n 2 --dist loadgroup --no-loadscope-reorder \
	--durations $(or $(DURATIONS),25) --durations-min 0.01 \
	--reruns 1 --only-rerun EmulatorFaultError
# one lab after the other: several are pairs with two clients or more
LONG_TESTS = $(BIN)/python -m pytest -q --long --durations $(or $(DURATIONS),25) --durations-min 0.01 \
	--reruns 1 --only-rerun EmulatorFaultError
.PHONY: help setup dev sweep test test-main test-lab test-nightly lint lint-code lint-playbooks lint-kernel unit image bench campaign docs reference fio-engine wheel zipapp deb container release release-check clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## Packages, .venv and .venv/bin/nfsrdma
	@tools/setup

dev: ## The same with linters and test tools
	@tools/setup dev

sweep: setup ## Measure NFS reads over TCP and RDMA, with the kernel's module and with ours, in a lab: out/sweep.db, out/report/index.html (7 minutes the first time); NIC=card|rxe
	@mkdir -p out
	@$(BIN)/nfsrdma sweep --lab --lab-nic $(or $(NIC),card) --preset quick \
		--transport tcp,rdma,nfsrdma --vers 3 --output out/sweep.db
	@$(BIN)/nfsrdma report out/sweep.db --output out/report

test: lint unit test-main ## Linters, unit tests, and the main path of each command on real mounts (12 minutes)

test-main: dev image ## The third part of `make test`: real kernels and real mounts in virtual machines
	@tools/setup browser
	$(LAB_TESTS) -m main tests/lab

test-lab: dev image ## All other lab tests but the long ones (40 minutes)
	@tools/setup browser
	$(LAB_TESTS) -m "not main and not nightly" tests/lab

test-nightly: dev image ## Soak, storms, other kernels, Kerberos, molecule, races, inference frameworks, long forms (hours)
	@tools/setup browser
	@tools/setup arm64
	$(LONG_TESTS) -m nightly tests/lab tests/distributions tests/frameworks

lint: dev ## ruff, import-linter, mypy --strict, codespell, banned phrases, licences, ansible-lint; lint-kernel for kmod/
	@$(MAKE) --no-print-directory -k -j2 --output-sync=target lint-playbooks lint-code

lint-code:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/python tools/words.py
	$(BIN)/reuse lint --lines

lint-playbooks:
	cd playbooks && PATH="$(CURDIR)/$(BIN):$$PATH" ANSIBLE_COLLECTIONS_PATH="$(CURDIR)/.venv/collections" ansible-lint

lint-kernel: dev ## checkpatch --strict and sparse over kmod/; names what it missed where one of them is absent
	$(BIN)/python tools/kernel_lint.py

# with bytecode, because two workers and the commands that they start import the same files
unit: dev ## Tests that need nothing but Python
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n 2 --dist worksteal --durations $(or $(DURATIONS),5) --durations-min 0.01 tests/unit

image: setup ## The image and the kernel that the tests start from (three minutes, then cached)
	@$(BIN)/nfsrdma lab build --extras

bench: dev $(if $(NAME),image) ## List the benchmarks, or run one, which writes its tables into docs: NAME=papers ARGS="--rounds 2"; NAME=papers ARGS=--help has its options
	@PYTHONPATH=tests $(BIN)/python -m bench $(NAME) $(ARGS)

campaign: dev $(if $(NAME),image) ## List the long tests, or run one: NAME=hostile ARGS="--seed 1 --kernel 6.1"; NAME=hostile ARGS=--help has its options
	@PYTHONPATH=tests $(BIN)/python -m campaign $(NAME) $(ARGS)

docs: dev ## The site, with its links checked: out/site/index.html
	@tools/setup docs
	$(BIN)/python tools/reference.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reference: dev ## Generate docs/reference from the code
	$(BIN)/python tools/reference.py

fio-engine: ## The fio engine of libnfsrdma, lib/build/fio.so, for the installed fio: FIO=DIR with its source (default: from Debian)
	@tools/fio-engine $(FIO)

wheel: setup ## dist/nfsrdma_tools-VERSION-py3-none-any.whl, with man pages: pip install "nfsrdma_tools-....whl[all]"
	@HATCH_BUILD_HOOK_ENABLE_CUSTOM=true $(BIN)/python -m pip -q --disable-pip-version-check wheel --no-deps -w dist .

zipapp: setup ## dist/nfsrdma.pyz: health and collect in one file, for a host with Python 3.9 and nothing else
	@$(BIN)/python tools/portable.py dist

deb: setup ## dist/*.deb for Debian 13: nfsrdma-tools, nfsrdma-dkms, libnfsrdma0, libnfsrdma-dev, checked by lintian (3 minutes)
	@$(BIN)/python tools/deb.py dist

container: deb ## dist/nfsrdma-tools-VERSION-container.tar, an image for podman, Docker and Kubernetes, on a Debian 13 that it makes, or on BASE=debian:trixie-slim; needs buildah
	@$(BIN)/python tools/container.py $(BASE)

release: setup ## dist/release-VERSION: all that is released, with checksums; refuses a tree that is not ready: ARGS=--check lists why, ARGS=--draft builds all the same
	@tools/setup release
	@PYTHONPATH=$(CURDIR):$(CURDIR)/tools $(BIN)/python -m release $(ARGS)

release-check: setup ## Build a draft of the release twice, under different conditions, and compare the files byte by byte (half an hour)
	@tools/setup release
	@PYTHONPATH=$(CURDIR):$(CURDIR)/tools $(BIN)/python -m release.twice

clean: ## Remove .venv, out and dist, and images and snapshots of other recipes
	@if test -x $(BIN)/nfsrdma; then $(BIN)/nfsrdma lab clean; fi
	rm -rf .venv out dist
