# lowtide: build, try, test. `make` alone builds.
CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
PYTHON := $(TARGET)/venv/bin/python

# Coverage for the fuzzer, of the crates under test only. What cargo-fuzz sets on nightly works on stable too, without sanitizers.
FUZZ_FLAGS := -Ccodegen-units=1 -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
	-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing

# All that is tested, and always all: each choice of packages would have features of its own, and be built anew. (What is in the
# agent and in the Python package is built without the lab's features all the same.)
QUICK := --profile quick
TESTED := $(QUICK) --workspace --exclude lowtide-agent
RUN := tests/run.py build $(TESTED) --lib --bins --tests --examples

# How the Python package is built.
WHEEL := --release

# Built elsewhere: what can be made to fail must never be taken for what is shipped.
FAULTS := $(CARGO) test --release --target-dir $(TARGET)/faults -p lowtide --features faults --test faults

.PHONY: build lab-binary demo test test-long check model fuzz faults soak remote overhead pools forktime table trees picture programs header crate deb test-deb deny wheel test-python lab race fmt \
	report prometheus pictures watching map vm kernels fault-costs defences links lint clean setup help forget-skipped downloads static long guests

build: ## target/release/lowtide: one file, the agent inside; its line tables beside it
	$(CARGO) build --release -p lowtide
	@cd $(TARGET)/release && objcopy --only-keep-debug lowtide lowtide.debug && \
		objcopy --strip-debug --add-gnu-debuglink=lowtide.debug lowtide lowtide.stripped && mv lowtide.stripped lowtide

# By itself: it turns on what nothing that is shipped has.
lab-binary:
	$(CARGO) build --release -p lowtide-lab

demo: setup build ## a real program natively and in 40 % of its memory
	$(PYTHON) demo/demo.py

test: export LOWTIDE_SKIPPED = $(abspath $(TARGET))/skipped
test: forget-skipped setup ## formatting, links, lints, model checks, unit tests, real programs under limits, the Python package
	@$(MAKE) --no-print-directory -j2 downloads static
	$(RUN)
	$(CARGO) test $(TESTED) --doc
	@$(MAKE) --no-print-directory wheel WHEEL="$(QUICK) --target-dir $(TARGET)"
	@tests/wheel.sh $(TARGET) again
	@tests/skipped.py $(LOWTIDE_SKIPPED)

# Two lanes: one waits for the network, the other for the compiler.
downloads:
	@tests/setup.sh valkey
	@tests/setup.sh wheel
	@tests/wheel.sh $(TARGET) environment
static: fmt links lint model

# What tests can't run on this machine they write into a file, which is read at the end.
forget-skipped:
	@rm -f $(LOWTIDE_SKIPPED)

test-long: export LOWTIDE_SKIPPED = $(abspath $(TARGET))/skipped-long
test-long: forget-skipped setup ## the tests that take long: those that wait for minutes, and those that thrash
	@$(MAKE) --no-print-directory -j2 guests long
	@$(MAKE) --no-print-directory kernels KERNELS=short
	@tests/skipped.py $(LOWTIDE_SKIPPED)

long:
	ROUNDS=$(or $(ROUNDS),12) $(RUN) -- real_programs= own_threads= torture= "remote=rounds --nocapture" --ignored --skip soak --skip everything_again_and_again
# Whether there can be any says `make kernels`.
guests:
	@[ "$$(id -u)" != 0 ] || { tests/setup.sh vm && FETCH_SECONDS=142 tests/vm/fetch oldest newest; } >/dev/null 2>&1 || true

check: fmt links lint ## before each commit: formatting, links, lints, unit tests
	tests/run.py test --no-run $(TESTED) --lib --bins

# (Without optimisation: what is inlined makes frames that are too large for loom's stacks.)
model: ## model checking with loom and shuttle
	$(CARGO) test -p lowtide-core --lib --features loom models
	$(CARGO) test -p lowtide-core --lib --features shuttle models

# Long inputs from the start: short sequences of calls get nowhere near full lists and spans.
fuzz: ## fuzzes the frame allocator, the pool, the slot allocator and the filters for SECONDS each (default 60)
	cd fuzz && for target in frames pool slots filters; do \
		RUSTFLAGS="$(FUZZ_FLAGS)" $(CARGO) run --release --target $$(rustc -vV | sed -n 's/^host: //p') --bin $$target -- \
			-len_control=0 -max_total_time=$(or $(SECONDS),60) || exit; \
	done

faults: setup ## whole runs with each operation of the swap file, each mapping and each allocation failing in turn, and many calls of the kernel
	LOWTIDE_FAULTS_ALL=1 $(FAULTS)
	LOWTIDE_FAULTS_ALL=1 $(CARGO) test --release --target-dir $(TARGET)/faults -p lowtide-region --features faults --test faults

soak: setup ## the tests that find races, for SOAK_SECONDS (default 300)
	$(CARGO) test --release -p lowtide --test torture --test real_programs --test swapoff -- --ignored --test-threads=1 --nocapture soak

remote: setup ## all tests of servers: each failure by its name, programs with their pages on a cluster, and one whose nodes are killed, stopped, replaced and resharded, ROUNDS times (default 100), with COPIES of each page
	@tests/setup.sh valkey
	$(CARGO) test $(QUICK) -p lowtide-remote
	$(CARGO) test $(TESTED) --test remote -- --include-ignored --nocapture

overhead: setup build ## what lowtide costs below the limit: bench/results/overhead.md
	$(PYTHON) tests/overhead.py

pools: setup build ## what the default finds for the compressed pool, against fixed sizes: bench/results/pools.md (20 minutes)
	@tests/setup.sh race
	$(PYTHON) tests/pool_sizes.py

forktime: setup build ## how long a fork takes, of a parent of which half is out
	$(PYTHON) tests/fork_time.py

vm: setup build ## a command in a virtual machine with another kernel, as root (ARGS="6.12 2 2G 'uname -r; lowtide doctor'")
	@tests/setup.sh vm
	@tests/vm/fetch $(firstword $(ARGS)) >/dev/null
	@tests/vm/vm $(ARGS)

kernels: setup ## tests in virtual machines: the oldest kernel to be had to the newest, 2 and 16 CPUs: bench/results/kernels.md (an hour, or hours if they are emulated; KERNELS=short: five minutes)
	@KERNELS="$(KERNELS)" tests/vm/kernels

fault-costs: setup build ## what a fault costs by a monitor, in its thread and by zram: switches, calls, instructions; in virtual machines, as root (half an hour)
	@tests/setup.sh vm
	@tests/vm/fetch $(or $(KERNEL),7.2) >/dev/null
	@tests/vm/fault_costs.py $(or $(KERNEL),7.2) $(CPUS)

defences: setup ## what the checks of the BPF programs are for: programs without each, in a virtual machine
	$(CARGO) build --profile quick --target-dir $(TARGET)/faults -p lowtide --features faults
	@tests/setup.sh vm
	@tests/vm/fetch $(or $(KERNEL),7.2) >/dev/null
	@SLOW=10 TIMEOUT=1800 tests/vm/vm $(or $(KERNEL),7.2) 2 2G 'python3 tests/vm/defences.py'

report: setup build ## what --report predicts for more RAM, against runs with that much
	$(PYTHON) tests/report_check.py

prometheus: setup build ## a real Prometheus scrapes a run, and answers what the dashboard asks
	@tests/setup.sh prometheus
	$(PYTHON) tests/prometheus_check.py

pictures: setup build ## reports in a browser: light, dark and printed, as pictures in target/pictures
	@tests/setup.sh browser
	$(PYTHON) tests/report_pictures.py

watching: setup build ## what --report and --metrics cost the run: wake-ups and CPU time
	$(PYTHON) tests/watching_cost.py

table: setup build ## the table of the README
	$(PYTHON) tests/table.py

picture: build ## docs/images/top.svg: what `lowtide top` shows of a run that thrashes (takes tmux)
	@tests/setup.sh picture
	$(PYTHON) tests/top_picture.py

trees: setup build ## process trees at 40 % of what they take natively, and a script of short processes: bench/results/trees.md (ten minutes)
	$(PYTHON) tests/trees.py

programs: setup build ## runtimes, databases, tools that others wrote: bench/results/programs.md (installs them; ARGS="--part go": one of its tables)
	$(PYTHON) tests/programs_table.py $(ARGS)

header: ## lowtide.h, of the code of crates/lowtide-c
	LOWTIDE_WRITE_HEADER=1 $(CARGO) test --release -p lowtide-c the_header

crate: ## the packages for a registry, in target/package; the library and the command built from them, elsewhere
	@tests/crate.sh $(TARGET)

deb: build ## the Debian package of the command, in target/debian
	@tests/setup.sh deb
	@contrib/deb/build.sh $(TARGET)

test-deb: deb ## the package in a fresh Debian root, and programs under it; as root
	@tests/setup.sh test-deb
	@tests/deb.sh $(TARGET)

deny: ## licences, advisories, duplicates and sources of dependencies (deny.toml)
	@tests/setup.sh deny
	PATH="$(abspath $(TARGET))/tools/bin:$$PATH" $(CARGO) deny --all-features check
	PATH="$(abspath $(TARGET))/tools/bin:$$PATH" $(CARGO) deny --manifest-path python/Cargo.toml check

wheel: setup ## the Python package, in target/wheels
	@tests/setup.sh wheel
	$(TARGET)/wheel-venv/bin/maturin build $(WHEEL) --manifest-path python/Cargo.toml --out $(TARGET)/wheels

test-python: wheel ## the wheel in a fresh environment: its tests and examples
	@tests/wheel.sh $(TARGET)

lab: build lab-binary ## the experiments, quickly
	$(TARGET)/release/lowtide-lab all --quick

race: build lab-binary ## lowtide against the kernel's zram at the same total memory, an hour at most; as root: bench/results/race.md (ARGS="--quick", "--only sort,gcc": printed only)
	@tests/setup.sh race
	$(TARGET)/release/lowtide-lab race $(or $(ARGS),--results bench/results/race.md); status=$$?; python3 tests/race_figures.py; exit $$status

fmt: ## checks the formatting
	$(CARGO) fmt --all --check

lint: setup ## warnings are errors
	$(CARGO) clippy $(TESTED) --all-targets -- -D warnings
	CARGO_PROFILE_QUICK_PANIC=abort $(CARGO) clippy $(QUICK) -p lowtide-agent -- -D warnings

map: ## each Rust file and what it is for, by folder (ARGS=pager/src/fault: only those)
	@python3 tests/map.py $(ARGS)

links: ## what the documents name is there, each wait and each system call is in its list, comments are short, rooms of the pager import downwards
	python3 -m doctest tests/links.py tests/race_figures.py tests/comments.py tests/sizes.py tests/rooms.py
	python3 tests/links.py
	python3 tests/comments.py
	python3 tests/sizes.py
	python3 tests/rooms.py
	python3 tests/waits.py
	python3 tests/memory_calls.py

setup: ## installs what is missing
	@tests/setup.sh

clean:
	$(CARGO) clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' Makefile
