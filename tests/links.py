"""make links: what the documents name is there: files and headings that they link to, files and `make` targets that they quote.

Prints each that is not, as FILE:LINE, and exits with 1.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
# What stands in the repository's root: a quoted path that begins so must exist.
PLACES = ("crates/", "docs/", "tests/", "demo/", "contrib/", "python/", "fuzz/")


def pages() -> list[Path]:
    """All documents, but what was built or installed."""
    found = (page.relative_to(ROOT) for page in ROOT.rglob("*.md"))
    return sorted(ROOT / page for page in found if not {"target", ".git", "node_modules"} & set(page.parts))


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub names them."""
    found: set[str] = set()
    for line in FENCE.sub("", page.read_text()).splitlines():
        if line.startswith("#"):
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip()).lower()
            name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            # The second heading of a name has a number.
            found.add(name if name not in found else f"{name}-1")
    return found


def wrong_links(page: Path, text: str) -> list[tuple[int, str]]:
    wrong = []
    for match in LINK.finditer(text):
        target, _, anchor = match.group(1).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists():
            wrong.append((match.start(), f"links to {target}, which is not there"))
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            wrong.append((match.start(), f"links to #{anchor}, which {path.name} has not"))
    return wrong


def wrong_names(text: str, targets: set[str]) -> list[tuple[int, str]]:
    wrong = []
    commands = [(m.start(1), m.group(1)) for m in CODE.finditer(text)]
    commands += [(m.start(), line.strip()) for m in FENCE.finditer(text) for line in m.group().splitlines()]
    for at, code in commands:
        # In words like `crates/lowtide/src/stats.rs::new` or `lowtide-core/src/steps.rs`.
        path = re.match(r"[\w./-]+", code)
        # Tests of the command are called by their names within its crate.
        places = (ROOT, ROOT / "crates/lowtide")
        if path and path.group().startswith(PLACES) and not any((place / path.group().rstrip(".")).exists() for place in places):
            wrong.append((at, f"names {path.group()}, which is not there"))
        made = re.match(r"(?:\w+=\S+ )*make ([a-z][\w-]*)", code)
        if made and made.group(1) not in targets:
            wrong.append((at, f"names `make {made.group(1)}`, which the Makefile has not"))
    return wrong


def main() -> int:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))
    failed = False
    for page in pages():
        text = page.read_text()
        for at, what in sorted(wrong_links(page, text) + wrong_names(text, targets)):
            failed = True
            print(f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, at) + 1}: {what}", file=sys.stderr)
    return int(failed)


sys.exit(main())
