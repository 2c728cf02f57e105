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
.PHONY: undo-sequences start-bench field-bench help setup dev sweep test lint lint-code lint-playbooks lint-kernel unit test-main test-lab test-nightly image fuzz bench bench-instructions bench-before bench-locks bench-clearing bench-client bench-client-count bench-client-python bench-library bench-sample bench-explain bench-loader fio-engine paper papers waits wires matrix suites module-campaign debug-kernel test-debug probes-bench capture-bench live-bench module-bench hostile hostile-replies soak repeatability test-arm64 test-kernels test-tables test-client test-interrupts test-threads test-hangs test-kerberos test-races test-fleet test-distributions test-live test-docs docs reference pictures wheel zipapp deb staleness optimistic optimistic-user threadless clean

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

test-nightly: dev image ## Soak, storms, other kernels, Kerberos, molecule, races, long forms (hours)
	@tools/setup browser
	@tools/setup arm64
	$(LONG_TESTS) -m nightly tests/lab tests/distributions

lint: dev ## ruff, mypy --strict, codespell, banned phrases, ansible-lint; lint-kernel for kmod/
	@$(MAKE) --no-print-directory -k -j2 --output-sync=target lint-playbooks lint-code

lint-code:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/python tools/words

lint-playbooks:
	cd playbooks && PATH="$(CURDIR)/$(BIN):$$PATH" ANSIBLE_COLLECTIONS_PATH="$(CURDIR)/.venv/collections" ansible-lint

lint-kernel: dev ## checkpatch --strict and sparse over kmod/; names what it missed where one of them is absent
	$(BIN)/python tools/kernel-lint

# with bytecode, because two workers and the commands that they start import the same files
unit: dev ## Tests that need nothing but Python
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n 2 --dist worksteal --durations $(or $(DURATIONS),5) --durations-min 0.01 tests/unit

undo-sequences: dev ## Random failures, kills and changes of others, then the undo: COUNT=2000 of them over server, tune, mount, packages and the mounts of playbooks
	UNDO_SEQUENCES=$$(( ($(or $(COUNT),2000) + 4) / 5 )) $(BIN)/python -m pytest -q -n 2 --dist worksteal tests/unit/test_undo_sequences.py

image: setup ## The image and the kernel that the tests start from (three minutes, then cached)
	@$(BIN)/nfsrdma lab build --extras

canaries: dev ## Plant canaries in HOSTS=200 made hosts; none may be in an anonymized bundle
	CANARY_HOSTS=$(or $(HOSTS),200) $(BIN)/python -m pytest -q tests/unit/doctor/test_canaries.py

fuzz: dev ## libFuzzer over the module's header code, FUZZ_SECONDS=600
	@tools/setup fuzz
	@PYTHONPATH=tests $(BIN)/python -m wire.fuzz $(or $(FUZZ_SECONDS),600)

module-campaign: dev image ## Life, faults and data of the module: KERNEL=6.12|6.1|7.2, SERVER=kernel|ours, LONG=1 for minutes of each; PERSONALITY=read-read with SERVER=ours
	$(BIN)/python -m pytest -q --kernel $(or $(KERNEL),6.12) --server $(or $(SERVER),kernel) $(if $(LONG),--long) \
		$(if $(PERSONALITY),--personality $(PERSONALITY),tests/lab/test_module_life.py) \
		tests/lab/test_module_faults.py tests/lab/test_module_data.py

debug-kernel: setup ## A kernel with KASAN, lockdep, kmemleak and more, from Debian's source (15 minutes, then cached): FLAVOUR=debug|kcsan
	@$(BIN)/nfsrdma lab build --kernel $(or $(FLAVOUR),debug)

MODULE_TESTS = $(filter-out %_warnings.py,$(wildcard tests/lab/test_module_*.py)) \
	$(addprefix tests/lab/test_,module.py interoperation.py krb5.py wire_capture.py soak.py)

test-debug: debug-kernel ## The module's tests on that kernel, over soft-RoCE and soft-iWARP; any report on a console fails: FLAVOUR
	@failed=0; for nic in rxe siw; do \
		$(BIN)/python -m pytest -q --kernel $(or $(FLAVOUR),debug) --nic $$nic --server ours $(MODULE_TESTS) || failed=1; \
	done; exit $$failed

bench: dev image ## TCP, the kernel's module and ours, counted in instructions, into docs/dev: NIC=card|rxe ROUNDS=3 KERNEL=6.12
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.solo $(or $(ROUNDS),2) $(or $(KERNEL),6.12) $(or $(NIC),card)
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m $(if $(filter rxe,$(NIC)),bench.wire $(or $(ROUNDS),2),bench.layers) $(or $(KERNEL),6.12)

bench-instructions: dev image ## Instructions of a read by QEMU's own count, and the modelled card's share, into docs/dev: KERNEL=6.12
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.instructions $(or $(KERNEL),6.12)

bench-before: dev image ## Instructions of all loads and personalities with the module of COMMIT and with today's, by QEMU's own count, into docs/dev: KERNEL=6.12 ONLY="nfsrdma cached"
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.before $(or $(COMMIT),51bcead) $(or $(KERNEL),6.12) $(ONLY)

bench-locks: dev image ## Where 16 readers wait for locks, and global locks taken, with 2, 4 and 8 processors, both modules, beside the module of COMMIT, into docs/dev: KERNEL=6.12
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.locks $(or $(KERNEL),6.12) $(or $(COMMIT),0c58fd1)

paper: dev image ## CPU time of sequential reads over two TCPs and RDMA, the modelled card's work included, into docs/dev: KERNEL=6.12
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.paper $(or $(KERNEL),6.12)

papers: dev image ## The figures of both papers of 2003 with all personalities, into docs/explanation/papers.md; an interrupted run continues: ROUNDS=1 KERNEL=6.12 ONLY="blocks records user user-records 2002 padded near far exposed same direct ahead"
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.papers $(or $(ROUNDS),1) $(or $(KERNEL),6.12) $(ONLY)

optimistic: dev image ## Optimistic reads beside reads by RPC, after the FAST paper, into docs; an interrupted run continues: NIC=card|rxe KERNEL=6.12 ONLY="response wire first refused bursts files patient streams"
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.optimistic $(or $(KERNEL),6.12) $(or $(NIC),card) $(ONLY)

optimistic-user: dev image ## Optimistic reads of libnfsrdma beside its RPCs, after the FAST paper, into docs; an interrupted run continues: KERNEL=6.12 ONLY="response files streams"
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.optimistic_user $(or $(KERNEL),6.12) $(ONLY)

threadless: dev image ## READs that the server answers from its page cache, beside READs by nfsd, into docs/dev: ROUNDS=3 KERNEL=6.12
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.threadless $(or $(ROUNDS),3) $(or $(KERNEL),6.12)

bench-client: dev image ## The user-level client beside mounts, and the reads that one CPU serves, into docs/dev: ROUNDS=3 KERNEL=6.12
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.client $(or $(ROUNDS),3) $(or $(KERNEL),6.12)

bench-client-count: dev image ## Instructions of a user-level read by reference, by function, into docs/dev: KERNEL=6.12; COMMIT=c4e11d01 counts those of a commit beside them
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.client_count $(or $(KERNEL),6.12) "$(COMMIT)"

bench-client-python: dev ## What the Python client adds to a read, in CPU time and instructions, without a lab, into docs/dev: TURNS=200, JSON=1 prints JSON; needs valgrind
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.client_python $(or $(TURNS),200) $(if $(JSON),--json)

bench-library: dev ## Instructions of libnfsrdma alone for a read by reference, without a lab, into docs/dev: COMMIT=c4e11d01 counts those of a commit beside them; needs valgrind
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.library_count "$(COMMIT)"

fio-engine: ## The fio engine of libnfsrdma, lib/build/fio.so, for the installed fio: FIO=DIR with its source (default: from Debian)
	@tools/fio-engine $(FIO)

bench-loader: dev image ## A data loader over mounts and without one, into docs/dev: ROUNDS=3 KERNEL=6.12; downloads pyarrow
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.loader $(or $(ROUNDS),3) $(or $(KERNEL),6.12)

waits: dev image ## How long a change waits for clients that read the file by themselves, into docs: FILES=4096 KERNEL=6.12
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.waits $(or $(KERNEL),6.12) $(or $(FILES),4096)

wires: dev image ## TCP and RDMA over the modelled card on wires of 1 to 25 Gb/s, into docs: KERNEL=6.12
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.wires $(or $(KERNEL),6.12)

matrix: dev image ## Which clients and servers work together, into docs/dev/interoperation.md: KERNEL=6.12|6.1|7.2|siw (default: all)
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.matrix $(KERNEL)

suites: dev image ## Test suites of others over TCP and RDMA, into docs/dev/suites.md; an interrupted run continues: SUITE=fstests|cthon|nfstest|pjdfstest SOURCE=DIR MINUTES=50 KERNEL=6.12 TRANSPORTS=tcp,rdma TESTS="chmod/*" NIC=card|rxe
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.suites "$(SUITE)" "$(SOURCE)" $(or $(KERNEL),6.12) $(or $(MINUTES),50) "$(TRANSPORTS)" "$(TESTS)" $(or $(NIC),card)

module-bench: dev image ## Our client module beside the kernel's, in turns, on a quiet host: ROUNDS=8 CLOCK=wall|counted
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.module $(or $(ROUNDS),8) $(or $(CLOCK),wall)

probes-bench: dev image ## Compare the cost of nfsrdma trace's probe sets with bpftrace: ROUNDS=3 KERNEL=6.12
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.probes $(or $(ROUNDS),3) $(or $(KERNEL),6.12)

capture-bench: dev image ## What nfsrdma capture costs per read on the instruction clock, with both modules: KERNEL=6.12
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.capture $(or $(KERNEL),6.12)

live-bench: dev image ## What the dashboard costs on the instruction clock: MOUNTS=64 FOR=60 seconds KERNEL=6.12 ONLY=all:1
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.live $(or $(MOUNTS),64) $(or $(FOR),60) $(or $(KERNEL),6.12) $(ONLY)

bench-sample: dev ## Cost of a sample of 1,000 mounts for top, dashboard and exporter, unchanged and all busy, beside that of COMMIT=e0effd54, without a lab, into docs/dev; counts instructions if valgrind is installed, else CPU time
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.sample "$(COMMIT)"

bench-explain: dev ## Cost of nfsrdma explain by kind of log, quiet to hostile, beside that of COMMIT=b4889e47, without a lab, into docs/dev: CPU time, peak memory, whether both explain the same, and instructions if valgrind is installed; MEGABYTES=4 of each log (500 for the memory of a long one), ONLY="'distinct frames' quiet"
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.explain "$(COMMIT)" $(or $(MEGABYTES),4) $(ONLY)

field-bench: dev image ## Cost of doctor, mounts and collect with 64 mounts and 16 ports, as multiples of nfsrdma --help, into docs/dev: KERNEL=6.12; HERE=1 for this host by Valgrind
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.field $(if $(HERE),--here,$(or $(KERNEL),6.12))

start-bench: dev ## How long nfsrdma --help takes, as a multiple of importing typer: PAIRS=20
	@$(BIN)/python tools/start-time $(or $(PAIRS),20)

test-live: dev image ## The dashboard's tests, with other kernels, a cable that is pulled under load, and loads for each bottleneck
	@tools/setup browser
	$(BIN)/python -m pytest -q --long tests/lab/test_live.py tests/lab/test_live_views.py \
		tests/lab/test_live_bottleneck.py

test-kernels: dev image ## NFS over RDMA, doctor, probe sets and dashboard on the other kernels; the module's warnings there: KERNEL=5.10 (default: all)
	$(LONG_TESTS) -m nightly -k "(other_kernels or kernels_count or no_warning)$(if $(KERNEL), and $(KERNEL)])" tests/lab

test-arm64: dev image ## Tools, probes and our module on arm64, with pages of 4 and 16 KiB; the first time takes a quarter of an hour more
	@tools/setup arm64
	$(LONG_TESTS) tests/lab/test_arm64.py

test-tables: dev ## pandas, pyarrow and zarr read and write by fsspec, over a device that stands in; installs them into .venv
	$(BIN)/python -m pip -q --disable-pip-version-check install -e ".[tables]"
	$(BIN)/python -m pytest -q tests/unit/client/test_tables.py

test-client: dev image ## libnfsrdma with another kernel or device: KERNEL=6.12|6.1|7.2 NIC=rxe|siw
	$(BIN)/python -m pytest -q --kernel $(or $(KERNEL),6.12) --nic $(or $(NIC),rxe) tests/lab/test_client.py

test-hangs: dev image ## Eleven hangs that nfsrdma health finds without accessing a mount: KERNEL=6.12
	$(LONG_TESTS) --kernel $(or $(KERNEL),6.12) tests/lab/test_health.py

test-kerberos: dev image ## krb5, krb5i and krb5p over RDMA, by our client and the kernel's: KERNEL=6.12
	$(LONG_TESTS) --kernel $(or $(KERNEL),6.12) tests/lab/test_krb5.py

test-races: dev image ## Connections that are left at every stage, and a listener that stops: SEED=8166 KERNEL=6.12
	@SEED=$(or $(SEED),8166) $(LONG_TESTS) --kernel $(or $(KERNEL),6.12) \
		-k "come_and_go or stops_under_load" tests/lab/test_hostile_peers.py

test-docs: dev image ## The commands of README.md and docs/, as printed, in a lab for each page
	$(LONG_TESTS) tests/lab/test_docs.py

test-distributions: dev ## Packages, wheel and zipapp in Debian 11, 12 and 13, and the programs of Debian 11 to unstable; needs root (15 minutes)
	$(BIN)/python -m pytest -q tests/distributions

test-fleet: dev image ## The playbooks on a lab of a server and three clients
	$(BIN)/python -m pytest -q --long tests/lab/test_fleet.py tests/lab/test_molecule.py

hostile-replies: setup ## Mutated replies to libnfsrdma in process, under ASan and UBSan: MESSAGES=10000 of NFSv3 and of NFSv4.1, from SEED=8166
	@PYTHONPATH=tests $(BIN)/python -m wire.hostile_replies $(or $(MESSAGES),10000) $(or $(SEED),8166)

hostile: dev image ## Peers that break the protocol, both ways: MESSAGES=10000 mutated ones each way, from SEED=8166; FROM=0 is the first; ONLY=; THREADLESS=65536; KERNEL=6.12
	@MESSAGES=$(or $(MESSAGES),10000) SEED=$(or $(SEED),8166) FROM=$(or $(FROM),0) THREADLESS=$(THREADLESS) $(BIN)/python -m pytest -q -s -x --long \
		--kernel $(or $(KERNEL),6.12) $(if $(ONLY),-k "$(ONLY)") tests/lab/test_hostile_peers.py

soak: dev image ## Two clients, verified load, faults of all kinds at random: MINUTES=15, from SEED; KERNEL=6.12
	@SECONDS_OF_SOAK=$$(($(or $(MINUTES),15) * 60)) SEED=$(SEED) $(BIN)/python -m pytest -q -s --long \
		--kernel $(or $(KERNEL),6.12) tests/lab/test_soak.py

test-interrupts: dev ## Interrupts of the Python client's calls at random places, over the device that the unit tests stand in: COUNT=1000
	@PYTHONPATH=.:tests $(BIN)/python -m device.interrupts $(or $(COUNT),1000)

test-threads: dev ## 16 threads that use sessions while those are closed, over that device: SECONDS=600 SANITIZER=thread|address
	@PYTHONPATH=.:tests $(BIN)/python -m device.threads $(or $(SANITIZER),thread) 1 $(or $(SECONDS),600)

staleness: dev image ## Readers that check each byte against writers of all kinds, over optimistic reads, or THREADLESS=1: MINUTES=60, from SEED; USER=1 adds readers through libnfsrdma; KERNEL=6.12
	@MINUTES=$(or $(MINUTES),60) SEED=$(SEED) USER_LEVEL=$(filter 1,$(USER)) $(BIN)/python -m pytest -q -s --long --kernel $(or $(KERNEL),6.12) \
		-k staleness_campaign tests/lab/test_$(if $(THREADLESS),threadless,optimistic).py

repeatability: setup ## Two boots of all cells, and a race, compared: see docs/dev/how-it-was-measured.md (20 minutes); NIC=card|rxe
	@mkdir -p out
	@for boot in 1 2; do $(BIN)/nfsrdma sweep --lab --lab-nic $(or $(NIC),card) --exhaustive --output out/boot$$boot.db || exit; done
	@$(BIN)/nfsrdma sweep --lab --lab-nic $(or $(NIC),card) --output out/race.db
	@$(BIN)/nfsrdma results compare out/boot1.db out/boot2.db
	@$(BIN)/nfsrdma results compare out/boot1.db out/race.db

docs: dev ## The site, with its links checked: out/site/index.html
	@tools/setup docs
	$(BIN)/python tools/reference --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reference: dev ## Generate docs/reference from the code
	$(BIN)/python tools/reference

bench-clearing: dev image ## Reads of three transports where the kernel clears new pages (out/sweep.db of `make sweep`) and where it does not, into docs/dev
	@mkdir -p out
	@$(BIN)/nfsrdma sweep --lab --lab-nic card --preset quick --transport tcp,rdma,nfsrdma --vers 3 \
		--lab-kernel-args init_on_alloc=0 --output out/not-cleared.db
	@$(BIN)/python -m bench.clearing out/sweep.db out/not-cleared.db

pictures: dev image ## Remake the pictures of docs/img in labs, and from out/sweep.db (30 minutes): ONLY=dashboard
	@tools/setup browser
	@PYTHONPATH=tests:tests/lab/helpers $(BIN)/python -m bench.pictures $(ONLY)

wheel: setup ## dist/nfsrdma_tools-VERSION-py3-none-any.whl, with man pages: pip install "nfsrdma_tools-....whl[all]"
	@HATCH_BUILD_HOOK_ENABLE_CUSTOM=true $(BIN)/python -m pip -q --disable-pip-version-check wheel --no-deps -w dist .

zipapp: setup ## dist/nfsrdma.pyz: health and collect in one file, for a host with Python 3.9 and nothing else
	@$(BIN)/python tools/portable.py dist

deb: setup ## dist/*.deb for Debian 13: nfsrdma-tools, nfsrdma-dkms, libnfsrdma0, libnfsrdma-dev, checked by lintian (3 minutes)
	@$(BIN)/python tools/deb dist

container: deb ## dist/nfsrdma-tools-VERSION-container.tar, an image for podman, Docker and Kubernetes, on a Debian 13 that it makes, or on BASE=debian:trixie-slim; needs buildah
	@$(BIN)/python tools/container $(BASE)

clean: ## Remove .venv, out and dist, and images and snapshots of other recipes
	@if test -x $(BIN)/nfsrdma; then $(BIN)/nfsrdma lab clean; fi
	rm -rf .venv out dist
