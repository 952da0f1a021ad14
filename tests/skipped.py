#!/usr/bin/env python3
"""skipped.py FILE: how many tests were skipped, and why, of the file that tests/skipped.rs writes: the last words of `make test`."""

import collections
import pathlib
import sys


def main():
    file = pathlib.Path(sys.argv[1])
    lines = file.read_text().splitlines() if file.exists() else []
    tests = collections.defaultdict(set)
    for line in lines:
        test, _, why = line.partition("\t")
        tests[why].add(test)
    skipped = {test for names in tests.values() for test in names}
    print(f"{len(skipped)} tests were skipped, wholly or in part")
    for why, names in sorted(tests.items(), key=lambda item: -len(item[1])):
        print(f"{len(names):4}  {why}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    main()
