#!/usr/bin/env bash
# Installs what building, testing and the demonstration need, and nothing that is there already. With a word, also what else that needs: race, wheel, picture, deb, test-deb, deny,
# prometheus, browser, vm, valkey.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}

say() { echo "setup: $*"; }
fail() { echo "setup: $*" >&2; exit 1; }

# The Rust toolchain is expected: which one and where from is the user's choice.
least=1.88.0
command -v cargo >/dev/null && command -v rustc >/dev/null || fail "Rust $least or newer is needed (cargo and rustc on PATH)"
version=$(rustc --version | cut -d' ' -f2 | cut -d- -f1)
[ "$(printf '%s\n%s\n' "$least" "$version" | sort -V | head -n 1)" = "$least" ] || fail "Rust $least or newer is needed, this is $version"

for part in fmt clippy; do
	cargo "$part" --version >/dev/null 2>&1 || fail "cargo $part is missing (rustup component add rustfmt clippy)"
done

# Commands and the Debian packages that bring them.
PATH=$PATH:/usr/sbin:/sbin
packages=()
need() { command -v "$1" >/dev/null || packages+=("$2"); }
need cc gcc
need gcc gcc
need make make
need redis-server redis-server
need openssl openssl
need ip iproute2
need memtester memtester
need strace strace
need pkg-config pkg-config
need c++ g++
need musl-gcc musl-tools
need busybox busybox-static
for_what=${1:-}
case $for_what in '' | race | wheel | picture | deb | test-deb | deny | prometheus | browser | vm | valkey) ;; *) fail "\`$for_what\`? There are: race, wheel, picture, deb, test-deb, deny, prometheus, browser, vm, valkey" ;; esac
if [ "$for_what" = picture ]; then need tmux tmux; fi
if [ "$for_what" = prometheus ]; then need prometheus prometheus; fi
if [ "$for_what" = browser ]; then need chromium chromium; fi
if [ "$for_what" = race ]; then
	need sort coreutils
	need node nodejs
	need mariadbd mariadb-server
	need sysbench sysbench
	need swapon mount
	need mkswap util-linux
fi
if [ "$for_what" = deb ]; then
	need dpkg-shlibdeps dpkg-dev
	need python3 python3
fi
if [ "$for_what" = vm ]; then
	need mkfs.ext4 e2fsprogs
	need setpriv util-linux
	need xz xz-utils
	need zstd zstd
fi
if [ "$for_what" = test-deb ]; then
	need mmdebstrap mmdebstrap
	need unshare util-linux
fi
command -v cc >/dev/null && { echo '#include <stdio.h>' | cc -E - >/dev/null 2>&1 || packages+=(libc6-dev); }
# python3 on PATH may be a version manager's, without what an environment needs; then the system's own does.
python_for_venv() {
	local python
	for python in python3 /usr/bin/python3; do
		if "$python" -c 'import ensurepip, venv' 2>/dev/null; then echo "$python"; return; fi
	done
}
has_numpy() { "$target/venv/bin/python" -c 'import numpy' 2>/dev/null; }
has_reader() { "$target/venv/bin/python" -c 'import prometheus_client' 2>/dev/null; }
has_numpy || [ -n "$(python_for_venv)" ] || packages+=(python3 python3-venv)

if [ ${#packages[@]} -gt 0 ]; then
	command -v apt-get >/dev/null || fail "please install: ${packages[*]} (no apt-get here)"
	as_root=()
	[ "$(id -u)" = 0 ] || as_root=(sudo -n)
	say "installing ${packages[*]}"
	log=$(mktemp)
	# RUNLEVEL=1: packages with a service must not start it.
	if ! { "${as_root[@]}" apt-get update -qq &&
		"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
			apt-get install -y -qq --no-install-recommends "${packages[@]}"; } </dev/null >"$log" 2>&1; then
		cat "$log" >&2
		fail "apt-get failed; please install: ${packages[*]}"
	fi
	rm -f "$log"
fi

if ! has_numpy; then
	say "making a Python environment with numpy in $target/venv"
	mkdir -p "$target"
	"$(python_for_venv)" -m venv --clear "$target/venv"
	"$target/venv/bin/pip" install --quiet --disable-pip-version-check 'numpy>=1.26,<3' </dev/null
fi
if ! has_reader; then
	say "adding prometheus_client to $target/venv"
	"$target/venv/bin/pip" install --quiet --disable-pip-version-check 'prometheus_client>=0.20,<1' </dev/null
fi
if [ "$for_what" = race ] && ! "$target/venv/bin/python" -c 'import duckdb' 2>/dev/null; then
	say "adding duckdb to $target/venv"
	"$target/venv/bin/pip" install --quiet --disable-pip-version-check duckdb </dev/null
fi
if [ "$for_what" = wheel ] && [ ! -x "$target/wheel-venv/bin/maturin" ]; then
	say "making a Python environment with maturin in $target/wheel-venv"
	"$(python_for_venv)" -m venv --clear "$target/wheel-venv"
	"$target/wheel-venv/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.7,<2' </dev/null
fi
if [ "$for_what" = picture ] && ! "$target/venv/bin/python" -c 'import rich' 2>/dev/null; then
	say "adding rich to $target/venv"
	"$target/venv/bin/pip" install --quiet --disable-pip-version-check 'rich>=14,<16' </dev/null
fi
# Tools of cargo, in these versions.
tool() {
	PATH=$target/tools/bin:$PATH command -v "$1" >/dev/null && return
	say "building $1 $2 (some minutes)"
	cargo install --quiet --locked --root "$target/tools" --version "$2" "$1"
}
if [ "$for_what" = deb ]; then tool cargo-deb 3.8.0; fi
# Not all Debians have it, and not all machines are Debian's: its tests are skipped then.
if [ "$for_what" = valkey ] && ! command -v valkey-server >/dev/null; then
	FETCH_SECONDS=120 tests/vm/fetch --valkey || say "no valkey-server: its tests are skipped"
fi
if [ "$for_what" = deny ]; then tool cargo-deny 0.20.2; fi
say "all there"
