#!/usr/bin/env bash
# Installs the wheel that `make wheel` has built into a fresh environment, and runs its tests and examples there.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$1
python=$target/wheel-test/bin/python
rm -rf "$target/wheel-test"
"$target/wheel-venv/bin/python" -m venv "$target/wheel-test"
wheel=$(ls -t "$target"/wheels/lowtide-*.whl | head -n 1)
"$python" -m pip install --quiet --disable-pip-version-check "$wheel[test]" </dev/null
python=$(realpath -s "$python")
# From elsewhere: the package is the installed one, not the sources'.
source=$(realpath python)
cd "$(mktemp -d)"
"$python" -m pytest -q -p no:cacheprovider "$source/tests"
for example in "$source"/examples/*.py; do
	"$python" "$example"
done
