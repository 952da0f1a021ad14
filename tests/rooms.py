#!/usr/bin/env python3
"""make links: a file of the pager imports from its own room and the rooms below it.

Unit tests may name any room: most need a whole pager. Its own tests are doctests: `python3 -m doctest tests/rooms.py`.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "crates/lowtide-pager/src"
# The rooms, lowest first.
ROOMS = ("pagemap", "pages", "mappings", "reclaim", "accounts", "fault", "fork", "pager")
# What all rooms may name of a room above them.
EXCEPTIONS = {
    "pager::Pager": "the whole: a method that needs two rooms is the Pager's",
}
# Where unit tests begin, up to the file's end.
TESTS = re.compile(r"^#\[cfg\(test\)\]\n(?:#\[.*\]\n)*(?:pub(?:\(crate\))? )?mod \w+ \{", re.M)
USE = re.compile(r"\buse crate::([^;]+);")
PATH = re.compile(r"\bcrate::((?:\w+::)+\w+)")


def names(text: str) -> list[tuple[int, str]]:
    """What a file names of its crate, and where: room::...::name.

    >>> names("use crate::pager::{Host, Pager};\\nuse crate::fault::worker::{self, Worker as W};")
    [(0, 'pager::Host'), (0, 'pager::Pager'), (33, 'fault::worker'), (33, 'fault::worker::Worker')]
    >>> names("use crate::{fault::{Served, load::A}, sys::Line};")
    [(0, 'fault::Served'), (0, 'fault::load::A'), (0, 'sys::Line')]
    >>> names("let a = crate::sys::Line::new(); // crate::fault::Served")
    [(8, 'sys::Line::new')]
    >>> names("fn f() {}\\n#[cfg(test)]\\nmod tests {\\n    use crate::pager::Pager;\\n}\\n")
    []
    """
    # Blanks in the place of comments, so that each name stays where it is.
    text = re.sub(r"//[^\n]*", lambda comment: " " * len(comment[0]), text)
    tests = TESTS.search(text)
    text = text[: tests.start()] if tests else text
    found = [(m.start(), name) for m in USE.finditer(text) for name in flat(m[1])]
    rest = USE.sub(lambda use: " " * len(use[0]), text)
    return sorted(found + [(m.start(), m[1]) for m in PATH.finditer(rest)])


def flat(tree: str) -> list[str]:
    """The paths of a `use`."""
    tree = re.sub(r"\s+", " ", tree).strip()
    head, brace, rest = tree.partition("{")
    if not brace:
        return [re.sub(r" as \w+$|::self$", "", tree)]
    items, depth, start, inner = [], 0, 0, rest.rstrip()[:-1]
    for at, sign in enumerate(inner + ","):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            items.append(inner[start:at])
            start = at + 1
    return [path for item in items if item.strip() for path in flat(head + item.strip())]


def upwards(room: str, text: str) -> list[tuple[int, str]]:
    """What a file of a room names of rooms above it.

    >>> upwards("reclaim", "use crate::pager::Pager;\\nuse crate::pagemap::PageState;\\nuse crate::reclaim::Evicted;")
    []
    >>> upwards("reclaim", "use crate::pager::Pager;\\nuse crate::fault::Served;")
    [(25, 'fault::Served')]
    """
    known = [(at, name) for at, name in names(text) if name.partition("::")[0] in ROOMS]
    return [(at, name) for at, name in known if ROOMS.index(name.partition("::")[0]) > ROOMS.index(room) and not excepted(name)]


def excepted(name: str) -> bool:
    return any(f"{name}::".startswith(f"{exception}::") for exception in EXCEPTIONS)


def main() -> int:
    failed = False
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir()}
    for room in sorted(rooms ^ set(ROOMS)):
        failed = True
        print(f"tests/rooms.py: ROOMS and crates/lowtide-pager/src differ in {room}", file=sys.stderr)
    used = set()
    for path in sorted(SOURCE.glob("*/**/*.rs")):
        room, text = path.relative_to(SOURCE).parts[0], path.read_text()
        if room not in ROOMS or path.stem.endswith("_tests"):
            continue
        if room != "pager":
            used |= {exception for exception in EXCEPTIONS for _, name in names(text) if f"{name}::".startswith(f"{exception}::")}
        for at, name in upwards(room, text):
            failed = True
            line = text.count("\n", 0, at) + 1
            print(f"{path.relative_to(ROOT)}:{line}: names {name}, of a room above {room}", file=sys.stderr)
    for exception in sorted(set(EXCEPTIONS) - used):
        failed = True
        print(f"tests/rooms.py: no room names {exception}: it is no exception any more", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
