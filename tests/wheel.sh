#!/usr/bin/env bash
# Installs the wheel that `make wheel` has built, and runs its tests and examples: in a fresh environment, or (`again`) in the one
# that is there, if it has what the tests need. `environment` makes that one, and no more.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$1
how=${2:-}
python=$target/wheel-test/bin/python
pip() { "$python" -m pip "$@" --quiet --disable-pip-version-check </dev/null; }
has_all() { "$python" -c 'import numpy, polars, pyarrow, pytest' 2>/dev/null; }
fresh() {
	rm -rf "$target/wheel-test"
	"$target/wheel-venv/bin/python" -m venv "$target/wheel-test"
}
if [ "$how" = environment ]; then
	has_all && exit
	fresh
	needed='import tomllib; print("\n".join(tomllib.load(open("python/pyproject.toml", "rb"))["project"]["optional-dependencies"]["test"]))'
	pip install -r <("$python" -c "$needed")
	exit
fi
wheel=$(ls -t "$target"/wheels/lowtide-*.whl | head -n 1)
if [ "$how" = again ] && has_all; then
	pip install --force-reinstall --no-deps "$wheel"
else
	fresh
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
