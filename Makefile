# haul: everything that is built, tested, shown and measured. `make help` lists it.
#
# Each target installs what it needs on Debian and Ubuntu (as root or with sudo -n); elsewhere it prints what is missing.

SHELL := /bin/bash
CARGO ?= cargo
ROUNDS ?= 50
# `make crash ROUNDS=n` says it too.
CRASH_ROUNDS ?= $(if $(filter command line,$(origin ROUNDS)),$(ROUNDS),30)
HISTORIES ?= 1000000
# Of the scheduler alone.
SCHEDULER_HISTORIES ?= $(HISTORIES)
SEED ?= 1
SECONDS_OF_FUZZING = $(or $(SECONDS),60)
# Tests run optimised, with assertions on; one profile, and never one package alone (its dependencies would have other
# features), so that nothing is built twice.
PROFILE := checked
TARGET := $(or $(CARGO_TARGET_DIR),target)
BUILT := $(TARGET)/$(PROFILE)
RELEASED := $(TARGET)/release
# What the loops run is built first, as it is. `make test` gives them what its tests have built, so that nothing is built twice: that has
# the feature `faults`, of which nothing happens unless somebody asks for it.
BUILD := build
# Namespaces and loop devices are root's.
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo -n)

.PHONY: help deps build tests release test lint unit sim torture crash syncs striped gluster ceph bench faults congestion fuzz demo clean

help: ## List the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## Install what the tests and the demo need
	@lab/deps.sh

build: deps ## Build everything as the tests use it
	$(CARGO) build --locked --profile $(PROFILE) --workspace

release: ## Build the program
	@lab/deps.sh release
	$(CARGO) build --locked --release -p haul

tests: deps
	$(CARGO) test --locked --profile $(PROFILE) --workspace --no-run

test: lint unit ## Everything: lint, unit, property, golden, conformance, simulator, end to end, kill loop, power cuts, striped file systems, GlusterFS
	$(MAKE) --no-print-directory sim BUILD=tests HISTORIES=60000
	$(MAKE) --no-print-directory torture BUILD=tests ROUNDS=50
	$(MAKE) --no-print-directory crash BUILD=tests CRASH_ROUNDS=30
	$(MAKE) --no-print-directory syncs
	$(MAKE) --no-print-directory striped BUILD=tests
	$(MAKE) --no-print-directory gluster BUILD=tests
	@echo "make test: all parts ran and passed"

lint: ## Format and lints, also without what tests add to the program
	@lab/deps.sh build
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --profile $(PROFILE) --workspace -- -D warnings
	$(CARGO) clippy --locked --profile $(PROFILE) --workspace --all-targets -- -D warnings

# End to end they mostly wait for one another's ends; those that are measured see to it themselves that they are alone.
unit: export RUST_TEST_THREADS ?= $(shell expr 2 '*' "$$(nproc)")
unit: tests ## Unit, property, golden, conformance and end-to-end tests
	$(CARGO) test --locked --profile $(PROFILE) --workspace
	$(CARGO) test --locked --profile $(PROFILE) --features haul-sim/planted-bugs --test planted_bugs --test planted_scheduler_bugs --test planted_neighbour_bugs

# Without what end-to-end tests need (FUSE).
sim: $(filter tests,$(BUILD)) ## Simulators: HISTORIES=n SCHEDULER_HISTORIES=n SEED=s
	$(if $(filter tests,$(BUILD)),,@lab/deps.sh build && $(CARGO) build --locked --profile $(PROFILE) --bin haul-sim)
	$(BUILT)/haul-sim --histories $(HISTORIES) --seed $(SEED) --threads 2
	$(BUILT)/haul-sim --scheduler --histories $(SCHEDULER_HISTORIES) --seed $(SEED) --threads 2

torture: $(BUILD) ## Kill loop over loopback ssh: ROUNDS=n SEED=s REPORT=directory
	$(BUILT)/testbed torture --haul $(BUILT)/haul --rounds $(ROUNDS) --seed $(SEED) $(if $(REPORT),--report "$(REPORT)")

crash: $(BUILD) ## Power cuts on file systems that lose what was not synced (as root or with sudo -n, for ext4 and XFS images): ROUNDS=n SEED=s REPORT=directory
	$(BUILT)/testbed crash --haul $(BUILT)/haul --rounds $(CRASH_ROUNDS) --seed $(SEED) $(if $(REPORT),--report "$(REPORT)")

# The program that tests start has the feature `faults`.
syncs: tests ## Remove each sync from the program in turn: a power cut must show it (as root or with sudo -n, for an ext4 image)
	$(BUILT)/testbed syncs --haul $(BUILT)/haul

striped: $(BUILD) ## Copy between emulated parallel file systems whose targets are slow, fail or hang (as root or with sudo -n, for FUSE)
	$(AS_ROOT) $(BUILT)/testbed striped --haul $(BUILT)/haul

gluster: $(BUILD) ## Copy to, from and between GlusterFS volumes of this machine; kill haul, kill and stop bricks (as root or with sudo -n)
	lab/deps.sh gluster
	$(AS_ROOT) $(BUILT)/testbed gluster --haul $(BUILT)/haul

ceph: build ## The same on a CephFS; not part of `make test`, as its packages take 700 MB (as root or with sudo -n)
	lab/deps.sh ceph
	$(AS_ROOT) $(BUILT)/testbed ceph --haul $(BUILT)/haul

# sudo has a PATH of its own, on which movers that somebody has built may be missing.
bench: release ## Side by side with other movers and the machine's limits; writes docs/evaluation/peers.md (as root or with sudo -n, else without memory file systems; ARGS="--case big ...")
	lab/deps.sh bench
	mkdir -p $(TARGET)/bench
	@set -e; run() { if $(or $(AS_ROOT),env) true 2>/dev/null; then $(AS_ROOT) env "PATH=$$PATH" "$$@"; else "$$@"; fi; }; \
	run $(RELEASED)/haul bench peers --report docs/evaluation --disk $(TARGET)/bench $(ARGS)

faults: release ## What object logs cost and what a fault costs; writes docs/evaluation/ft-lads.md (ARGS="--scale paper ...")
	lab/deps.sh bench
	$(RELEASED)/haul bench faults --report docs/evaluation $(ARGS)

congestion: release ## Slow storage targets and what each policy makes of them; writes docs/evaluation/lads.md (as root; ARGS="--scale paper ...", "--file-system gluster", "ceph")
	$(CARGO) build --locked --release -p haul-stripefs -p haul-testbed
	lab/deps.sh bench
	$(if $(findstring gluster,$(ARGS)),lab/deps.sh gluster)
	$(if $(findstring ceph,$(ARGS)),lab/deps.sh ceph)
	$(AS_ROOT) $(RELEASED)/haul bench congestion --report docs/evaluation $(ARGS)

fuzz: ## Fuzz the reader of object logs (needs a nightly toolchain and cargo-fuzz): SECONDS=n
	cd crates/objectlog && $(CARGO) +nightly fuzz run read -- -max_total_time=$(SECONDS_OF_FUZZING)

demo: release ## Move a real dataset over loopback ssh, kill the sink half-way, continue, verify (SOURCE=... DEST=...)
	$(CARGO) build --locked --release -p haul-testbed
	$(RELEASED)/testbed demo --haul $(RELEASED)/haul --dir $(TARGET)/demo $(if $(SOURCE),--source "$(SOURCE)") $(if $(DEST),--dest "$(DEST)")

clean: ## Remove what was built
	$(CARGO) clean
