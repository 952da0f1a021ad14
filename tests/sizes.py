#!/usr/bin/env python3
"""make links: functions in crates/*/src have at most 70 lines, or say why not, `(Over 70 lines: ...)`, in the comment before them; files have at most 400
without their tests. Files of tests may be as long as they like.

Its own tests are doctests: `python3 -m doctest tests/sizes.py`.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_OF_FUNCTION, MOST_OF_FILE = 70, 400
# Files that are longer today: they may shrink, and not grow.
LARGER = {
    "crates/lowtide/src/supervisor/enter/tracee.rs": 552,
    "crates/lowtide-agent/src/hooks/gate.rs": 419,
    "crates/lowtide-agent/src/hooks/mod.rs": 502,
    "crates/lowtide-core/src/device/remote.rs": 411,
    "crates/lowtide-pager/src/reclaim/detach.rs": 452,
    "crates/lowtide-wire/src/segment/process.rs": 455,
    "crates/lowtide-remote/src/client.rs": 493,
    "crates/lowtide-remote/src/pages.rs": 482,
    "crates/lowtide-remote/src/remote.rs": 501,
}
FUNCTION = re.compile(r"^( *)(?:pub(?:\([a-z ]+\))? )?(?:(?:const|unsafe|extern \"C\") )*fn (\w+)")
TESTS = re.compile(r"^#\[cfg\((?:all\()?test\b")


def without_tests(lines: list[str]) -> list[str]:
    """What stands before the tests at the file's end.

    >>> without_tests(["fn f() {}", "#[cfg(test)]", "mod tests {", "}"])
    ['fn f() {}']
    >>> len(without_tests(["#[cfg(test)]", "mod tests;", "fn f() {}"]))
    3
    """
    ends = (i for i, line in enumerate(lines) if TESTS.match(line) and not lines[i + 1].endswith(";") and lines[i + 1].startswith("mod "))
    return lines[: next(ends, len(lines))]


def functions(lines: list[str]) -> list[tuple[int, str, int, str]]:
    """Line, name, length and comment of each function with a body.

    >>> functions(["/// Doc.", "fn f() {", "    g();", "}", "trait T {", "    fn h();", "}"])
    [(2, 'f', 3, '/// Doc.')]
    """
    found = []
    for i, line in enumerate(lines):
        match = FUNCTION.match(line)
        if not match:
            continue
        head = next((j for j in range(i, len(lines)) if re.search(r"[{};]\s*$", lines[j])), i)
        if not lines[head].rstrip().endswith("{"):
            continue
        end = next((j for j in range(head, len(lines)) if lines[j] == match[1] + "}"), head)
        start = i
        while start > 0 and lines[start - 1].strip().startswith(("//", "#[")):
            start -= 1
        found.append((i + 1, match[2], end - i + 1, "\n".join(lines[start:i])))
    return found


def main() -> int:
    faults = []
    for path in sorted(ROOT.glob("crates/*/src/**/*.rs")):
        if path.stem == "tests" or path.stem.endswith("_tests") or "tests" in path.parts or "models" in path.parts or path.stem == "models":
            continue
        lines, name = without_tests(path.read_text().splitlines()), path.relative_to(ROOT)
        most = LARGER.get(str(name), MOST_OF_FILE)
        if len(lines) > most:
            faults.append(f"{name}: {len(lines)} lines, and {most} are the most: split it")
        for number, function, length, comment in functions(lines):
            if length > MOST_OF_FUNCTION and "(Over 70 lines:" not in re.sub(r"\s*///?\s*", " ", comment):
                faults.append(f"{name}:{number}: {function} has {length} lines, and {MOST_OF_FUNCTION} are the most: split it, or say why not")
    print("\n".join(faults), end="\n" if faults else "", file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
