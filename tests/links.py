"""make links: the documents name only what is there (files, headings, `make` targets), are short enough to be read, and the README says of the race what
bench/results/race.md says.

Prints each fault as FILE:LINE, and exits with 1. Its own tests are doctests: `python3 -m doctest tests/links.py`.
"""

import re
import sys
from pathlib import Path

import race_figures

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
# A source file, or the end of its path, and perhaps what is in it.
SOURCE = re.compile(r"((?:[\w-]+/)*[\w-]+\.(?:rs|c|py))(?:::(\w+))?")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
# What stands in the repository's root: a quoted path that begins so must exist.
PLACES = ("crates/", "docs/", "bench/", "tests/", "demo/", "contrib/", "python/", "fuzz/")
# Prose is wrapped here, so that a change of one word is not a change of a paragraph.
COLUMNS = 100
# Here is what commands print: as wide and as long as it comes.
RESULTS = "bench/results/"
# Most words, as `wc -w` counts them: of single pages, and of all but results together.
WORDS = {"README.md": 1100, "ARCHITECTURE.md": 3000, "bench/README.md": 1500, "docs/kernels.md": 500}
ALL_WORDS = 35000
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


def sources() -> dict[str, list[Path]]:
    """All source files by name."""
    found: dict[str, list[Path]] = {}
    for folder in ("bench", "contrib", "crates", "demo", "fuzz", "python", "tests"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".rs", ".c", ".py") and "target" not in path.parts:
                found.setdefault(path.name, []).append(path)
    return found


def wrong_sources(text: str, files: dict[str, list[Path]]) -> list[tuple[int, str]]:
    """Source files that are not there, or lack what they are said to have.

    >>> files = sources()
    >>> wrong_sources("`tests/links.py::wrong_sources`, `links.py`, and `policy.rs`", files)
    []
    >>> wrong_sources("`nowhere/links.py`", files), wrong_sources("`links.py::absent`", files)
    ([(1, 'names nowhere/links.py, which is not there')], [(1, 'names links.py::absent, and there is no absent')])
    """
    wrong = []
    for code in CODE.finditer(text):
        match = SOURCE.fullmatch(code.group(1))
        # (NAME stands for any.)
        if not match or "NAME" in match[1]:
            continue
        name, item = match.groups()
        there = [path for path in files.get(Path(name).name, []) if f"/{path}".endswith(f"/{name}")]
        if not there:
            wrong.append((code.start(1), f"names {name}, which is not there"))
        elif item and not any(re.search(rf"\b(fn|struct|enum|const|static|mod|def|type) {item}\b|^[^\n]*\b{item}\(", path.read_text(), re.M) for path in there):
            wrong.append((code.start(1), f"names {code.group(1)}, and there is no {item}"))
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

    >>> too_many_words("README.md", "word " * 1100), too_many_words("docs/cli.md", "word " * 1101)
    ([], [])
    >>> too_many_words("README.md", "word " * 1101)
    [(0, 'has 1101 words, and 1100 are the most: shorten it')]
    """
    words, most = len(text.split()), WORDS.get(name)
    if most is None or words <= most:
        return []
    return [(0, f"has {words} words, and {most} are the most: shorten it")]


def wrong_figures(name: str, text: str) -> list[tuple[int, str]]:
    """Whether the README says of the race what its page says."""
    if name != "README.md":
        return []
    at = max(text.find(race_figures.BEGIN), 0)
    try:
        same = race_figures.replaced(text) == text
    except (KeyError, OSError, ValueError) as error:
        return [(at, f"can't be compared with the race: {error!r}")]
    return [] if same else [(at, "has other figures of the race than bench/results/race.md: run tests/race_figures.py")]


def main() -> int:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))
    files = sources()
    failed, words = False, 0
    for page in pages():
        text = page.read_text()
        name = str(page.relative_to(ROOT))
        wrong = wrong_links(page, text) + wrong_names(text, targets) + wrong_sources(text, files) + wrong_figures(name, text)
        if not name.startswith(RESULTS):
            wrong += long_lines(text) + too_many_words(name, text)
            words += len(text.split())
        for at, what in sorted(wrong):
            failed = True
            print(f"{name}:{text.count(chr(10), 0, at) + 1}: {what}", file=sys.stderr)
    if words > ALL_WORDS:
        failed = True
        print(f"all pages but {RESULTS} have {words} words, and {ALL_WORDS} are the most: shorten some", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
