#!/usr/bin/env bash
# crate.sh TARGET: packs all crates that are published, and uses the packages as their users will, from a registry (here: a directory in
# its place, with copies of what others wrote): an example of the library in a project of its own, and `cargo install lowtide`.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "$1")
# In the order in which they are published.
crates=(lowtide-core lowtide-sys lowtide-wire lowtide-pager lowtide-config lowtide-remote lowtide-bpf lowtide-region lowtide-agent lowtide)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# Not verified one by one: a package of the agent is to be had from a registry only, so all are tried together below.
cargo package --quiet --allow-dirty --no-verify --target-dir "$target" "${crates[@]/#/--package=}"

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/cargo-home" "$dir/user/src"
cargo vendor --quiet --locked --versioned-dirs "$dir/vendor" >/dev/null
printf '[source.crates-io]\nreplace-with = "copies"\n[source.copies]\ndirectory = "%s"\n' "$dir/vendor" >"$dir/cargo-home/config.toml"
for crate in "${crates[@]}"; do
	package=$target/package/$crate-$version.crate
	tar -xzf "$package" -C "$dir/vendor"
	for file in LICENSE-MIT LICENSE-APACHE Cargo.lock; do
		[ -f "$dir/vendor/$crate-$version/$file" ] || { echo "crate.sh: $file is not in the package of $crate" >&2; exit 1; }
	done
	printf '{"files":{},"package":"%s"}' "$(sha256sum "$package" | cut -d' ' -f1)" >"$dir/vendor/$crate-$version/.cargo-checksum.json"
done

printf '[package]\nname = "user"\nversion = "0.0.0"\nedition = "2024"\n\n[dependencies]\nfastrand = "2"\n%s\n' \
	"lowtide = { version = \"$version\", default-features = false }" >"$dir/user/Cargo.toml"
sed 's/lowtide_region/lowtide/' crates/lowtide-region/examples/cache.rs >"$dir/user/src/main.rs"
cd "$dir"
export CARGO_HOME=$dir/cargo-home
cargo run --quiet --release --offline --manifest-path user/Cargo.toml --target-dir "$target/crate-test"
cargo install --quiet --locked --offline --target-dir "$target/crate-test" --root "$dir/root" lowtide
"$dir/root/bin/lowtide" --version
"$dir/root/bin/lowtide" run --ram 64M -- python3 -c 'a = [bytes([i % 256, i % 251]) * 2048 for i in range(32768)]; assert all(p[9] == i % 251 for i, p in enumerate(a))'
