"""make links: the documents name only what is there (files, headings, `make` targets), and are short enough to be read.

Prints each fault as FILE:LINE, and exits with 1. Its own tests are doctests: `python3 -m doctest tests/links.py`.
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
# Prose is wrapped here, so that a change of one word is not a change of a paragraph.
COLUMNS = 100
# Most words, as `wc -w` counts them, of the pages that a newcomer reads first.
WORDS = {"README.md": 1300, "ARCHITECTURE.md": 3500}
# Lines that can't be wrapped: of tables, headings, HTML, definitions of links, and of a link or a word alone.
WHOLE = re.compile(r"\s*(?:[-*>] |\d+\. )*(?:\||#|<|\[[^]]+\]:|!?\[[^]]*\]\([^)]*\)[.,:;]?$|\S+$)")


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


def long_lines(text: str) -> list[tuple[int, str]]:
    """Lines of prose that are not wrapped.

    >>> prose = "word " * 19 + "words"
    >>> long_lines(prose), long_lines(prose + "!")
    ([], [(0, 'has 101 columns of prose, and 100 are the most: wrap it')])
    >>> code, link, row = f"```sh\\n{prose} -x\\n```", f"- [a link]({'x' * 99}).", f"| {prose} |"
    >>> long_lines("\\n".join([code, link, row, f"# {prose}", f"<!-- {prose} -->", f"[name]: {prose}", "x" * 101]))
    []
    >>> long_lines(f"{code}\\n{prose}, and [a link](x)")[0][0] == len(code) + 1
    True
    """
    wrong = []
    # Blanks in the place of code, so that each line stays where it is.
    start, text = 0, FENCE.sub(lambda code: re.sub(r"[^\n]", " ", code.group()), text)
    for line in text.split("\n"):
        if len(line) > COLUMNS and line.strip() and not WHOLE.match(line):
            wrong.append((start, f"has {len(line)} columns of prose, and {COLUMNS} are the most: wrap it"))
        start += len(line) + 1
    return wrong


def too_many_words(name: str, text: str) -> list[tuple[int, str]]:
    """Whether a page that must be short is not.

    >>> too_many_words("README.md", "word " * 1300), too_many_words("docs/cli.md", "word " * 1301)
    ([], [])
    >>> too_many_words("README.md", "word " * 1301)
    [(0, 'has 1301 words, and 1300 are the most: shorten it')]
    """
    words, most = len(text.split()), WORDS.get(name)
    if most is None or words <= most:
        return []
    return [(0, f"has {words} words, and {most} are the most: shorten it")]


def main() -> int:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))
    failed = False
    for page in pages():
        text = page.read_text()
        name = str(page.relative_to(ROOT))
        wrong = wrong_links(page, text) + wrong_names(text, targets) + long_lines(text) + too_many_words(name, text)
        for at, what in sorted(wrong):
            failed = True
            print(f"{name}:{text.count(chr(10), 0, at) + 1}: {what}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
