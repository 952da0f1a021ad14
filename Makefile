# lowtide: build, try, test. `make` alone builds.
CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
PYTHON := $(TARGET)/venv/bin/python

# Coverage for the fuzzer, of the crates under test only. What cargo-fuzz sets on nightly works on stable too, without sanitizers.
FUZZ_FLAGS := -Ccodegen-units=1 -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
	-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing

# Without link-time optimisation: tests are built in half of the time.
QUICK := --profile quick

# How the Python package is built.
WHEEL := --release

# Apart, because cargo would build what is shipped with the lab's features.
SHIPPED := -p lowtide -p lowtide-region -p lowtide-config -p lowtide-remote -p lowtide-c
WITH_LAB := -p lowtide-core -p lowtide-pager -p lowtide-bpf -p lowtide-lab

# Built elsewhere: what can be made to fail must never be taken for what is shipped.
FAULTS := $(CARGO) test --release --target-dir $(TARGET)/faults -p lowtide --features faults --test faults

# Built as the model checks are, without optimisation that takes time: they have built the dependencies.
CHECKED := -p lowtide-core -p lowtide-pager --lib --test in_process

.PHONY: build lab-binary demo test test-long check model checked fuzz faults soak remote overhead pools forktime table trees picture programs header crate deb test-deb deny wheel test-python lab race fmt \
	report prometheus pictures watching map vm kernels fault-costs defences links lint clean setup help forget-skipped

build: ## target/release/lowtide: one file, the agent inside
	$(CARGO) build --release -p lowtide

# By itself: it turns on what nothing that is shipped has.
lab-binary:
	$(CARGO) build --release -p lowtide-lab

demo: setup build ## a real program natively and in 40 % of its memory
	$(PYTHON) demo/demo.py

test: export LOWTIDE_SKIPPED = $(abspath $(TARGET))/skipped
test: forget-skipped setup fmt links lint model checked ## formatting, links, lints, model checks, unit tests, real programs under limits, the Python package
	@tests/setup.sh valkey
	$(CARGO) test $(QUICK) $(SHIPPED)
	$(CARGO) test $(QUICK) $(WITH_LAB)
	@$(MAKE) --no-print-directory wheel WHEEL="$(QUICK) --target-dir $(TARGET)"
	@tests/wheel.sh $(TARGET) again
	@tests/skipped.py $(LOWTIDE_SKIPPED)

# What tests can't run on this machine they write into a file, which is read at the end.
forget-skipped:
	@rm -f $(LOWTIDE_SKIPPED)

test-long: export LOWTIDE_SKIPPED = $(abspath $(TARGET))/skipped-long
test-long: forget-skipped setup ## the tests that take long: those that wait for minutes, and those that thrash
	$(CARGO) test $(QUICK) -p lowtide --test real_programs --test own_threads --test torture -- --ignored --skip soak --skip everything_again_and_again
	ROUNDS=$(or $(ROUNDS),12) $(CARGO) test $(QUICK) -p lowtide --test remote -- --ignored --nocapture rounds
	@$(MAKE) --no-print-directory kernels KERNELS=short
	@tests/skipped.py $(LOWTIDE_SKIPPED)

check: fmt links lint ## before each commit: formatting, links, lints, unit tests
	$(CARGO) test $(QUICK) $(SHIPPED) --lib --bins
	$(CARGO) test $(QUICK) $(WITH_LAB) --lib --bins

# That the order of locks is asserted there at all is proved by name: the test exists in such builds only.
checked: setup ## the unit tests of core and pager with debug assertions, which the others are without: order of locks, overflows
	$(CARGO) test $(CHECKED)
	@$(CARGO) test --quiet $(CHECKED) -- --exact lock::order::tests::downwards_is_caught | grep '1 passed' >/dev/null || \
		{ echo "the order of locks is not asserted in debug builds" >&2; exit 1; }

model: ## model checking with loom and shuttle
	$(CARGO) test -p lowtide-core --lib --features loom models
	$(CARGO) test -p lowtide-core --lib --features shuttle models

# Long inputs from the start: short sequences of calls get nowhere near full lists and spans.
fuzz: ## fuzzes the frame allocator, the pool and the slot allocator for SECONDS each (default 60)
	cd fuzz && for target in frames pool slots; do \
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
	$(CARGO) test $(QUICK) -p lowtide --test remote -- --include-ignored --nocapture

overhead: setup build ## what lowtide costs below the limit
	$(PYTHON) tests/overhead.py

pools: setup build ## what the default finds for the compressed pool, against fixed sizes (20 minutes)
	@tests/setup.sh race
	$(PYTHON) tests/pool_sizes.py

forktime: setup build ## how long a fork takes, of a parent of which half is out
	$(PYTHON) tests/fork_time.py

vm: setup build ## a command in a virtual machine with another kernel, as root (ARGS="6.12 2 2G 'uname -r; lowtide doctor'")
	@tests/setup.sh vm
	@tests/vm/fetch $(firstword $(ARGS)) >/dev/null
	@tests/vm/vm $(ARGS)

kernels: setup ## tests in virtual machines: the oldest kernel to be had to the newest, 2 and 16 CPUs: docs/kernels.md (an hour; KERNELS=short: five minutes)
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

trees: setup build ## process trees at 40 % of what they take natively, and a script of short processes (ten minutes)
	$(PYTHON) tests/trees.py

programs: setup build ## runtimes, databases, tools that others wrote: docs/programs.md (installs them; ARGS="--part go": one of its tables)
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

race: build lab-binary ## lowtide against the kernel's zram at the same total memory, an hour at most; as root (ARGS="--quick", "--only sort,gcc")
	@tests/setup.sh race
	$(TARGET)/release/lowtide-lab race $(ARGS)

fmt: ## checks the formatting
	$(CARGO) fmt --all --check

lint: setup ## warnings are errors
	$(CARGO) clippy $(QUICK) --workspace --exclude lowtide-agent --all-targets -- -D warnings
	$(CARGO) clippy $(QUICK) -p lowtide-agent -- -D warnings

map: ## each Rust file and what it is for, by folder (ARGS=pager/src/fault: only those)
	@python3 tests/map.py $(ARGS)

links: ## what the documents name is there, and each wait and each system call in its list
	python3 -m doctest tests/links.py
	python3 tests/links.py
	python3 tests/waits.py
	python3 tests/memory_calls.py

setup: ## installs what is missing
	@tests/setup.sh

clean:
	$(CARGO) clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' Makefile
