# lowtide: build, try, test. `make` alone builds.
CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
PYTHON := $(TARGET)/venv/bin/python

.PHONY: build demo test soak overhead table lab fmt lint clean setup help

build: ## target/release/lowtide: one file, the agent inside
	$(CARGO) build --release

demo: setup build ## a real program natively and in 40 % of its memory
	$(PYTHON) demo/demo.py

test: setup fmt lint ## formatting, lints, unit tests, real programs under limits
	$(CARGO) test --release --workspace --exclude lowtide-agent

soak: setup ## the tests that find races, for SOAK_SECONDS (default 300)
	$(CARGO) test --release -p lowtide --test real_programs -- --ignored --test-threads=1 soak

overhead: setup build ## what lowtide costs below the limit
	$(PYTHON) tests/overhead.py

table: setup build ## the table of the README
	$(PYTHON) tests/table.py

lab: build ## the experiments, quickly
	$(TARGET)/release/lowtide-lab all --quick

fmt: ## checks the formatting
	$(CARGO) fmt --all --check

lint: setup ## warnings are errors
	$(CARGO) clippy --release --workspace --exclude lowtide-agent --all-targets -- -D warnings
	$(CARGO) clippy --release -p lowtide-agent -- -D warnings

setup: ## installs what is missing
	@tests/setup.sh

clean:
	$(CARGO) clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1: /p' Makefile
