#!/usr/bin/env bash
# Installs the wheel that `make wheel` has built, and runs its tests and examples: in a fresh environment, or (`again`) in the one
# that is there, if it has what the tests need.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$1
again=${2:-}
python=$target/wheel-test/bin/python
wheel=$(ls -t "$target"/wheels/lowtide-*.whl | head -n 1)
pip() { "$python" -m pip "$@" --quiet --disable-pip-version-check </dev/null; }
if [ "$again" = again ] && "$python" -c 'import numpy, polars, pyarrow, pytest' 2>/dev/null; then
	pip install --force-reinstall --no-deps "$wheel"
else
	rm -rf "$target/wheel-test"
	"$target/wheel-venv/bin/python" -m venv "$target/wheel-test"
	pip install "$wheel[test]"
fi
python=$(realpath -s "$python")
# From elsewhere: the package is the installed one, not the sources'.
source=$(realpath python)
cd "$(mktemp -d)"
"$python" -m pytest -q -p no:cacheprovider "$source/tests"
for example in "$source"/examples/*.py; do
	"$python" "$example"
done
