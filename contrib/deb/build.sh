#!/usr/bin/env bash
# build.sh TARGET: TARGET/debian/lowtide_*.deb of the command that is built already. What is in it: crates/lowtide/Cargo.toml.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=$(realpath "$1")
lowtide=$target/release/lowtide
# The name is in crates/lowtide/Cargo.toml.
pages=target/pages
rm -rf "$pages"
mkdir -p "$pages"
"$lowtide" man --all "$pages"
for shell in bash zsh fish; do
	"$lowtide" completions "$shell" >"$pages/lowtide.$shell"
done
python3 contrib/deb/licences.py "$pages/third-party-licences"
PATH=$target/tools/bin:$PATH cargo deb --quiet --no-build --strip --locked -p lowtide --output "$target/debian/"
