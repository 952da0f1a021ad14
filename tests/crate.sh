#!/usr/bin/env bash
# Packs the crates of the library, and runs an example against what is in the packages, in a project of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "$1")
crates=(lowtide-core lowtide-pager lowtide-region lowtide)
# Without the command line, whose agent is not in its package.
cargo package --quiet --allow-dirty --no-default-features --target-dir "$target" "${crates[@]/#/--package=}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/user/src"
{
	printf '[package]\nname = "user"\nversion = "0.0.0"\nedition = "2024"\n\n[dependencies]\nfastrand = "2"\n'
	printf 'lowtide = { version = "0.1", default-features = false }\n\n[patch.crates-io]\n'
	for crate in "${crates[@]}"; do
		tar -xzf "$target/package/$crate-0.1.0.crate" -C "$dir"
		echo "$crate = { path = \"../$crate-0.1.0\" }"
	done
} >"$dir/user/Cargo.toml"
sed 's/lowtide_region/lowtide/' crates/lowtide-region/examples/cache.rs >"$dir/user/src/main.rs"
cargo run --quiet --release --manifest-path "$dir/user/Cargo.toml" --target-dir "$target/crate-test"
