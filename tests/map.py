"""make map: each Rust file of the crates, by folder, with the first sentence of the comment at its head.

With arguments, only the files whose path contains one of them: `tests/map.py pager/src/fault`.
"""

import re
import signal
import sys
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# In each folder these say what the folder is for.
FACES = ("lib.rs", "main.rs", "mod.rs")


def first_sentence(path: Path) -> str:
    """Of the `//!` comment at the head of a file; empty if there is none."""
    head: list[str] = []
    for line in path.read_text().splitlines():
        text = line.removeprefix("//!").strip()
        if line.startswith("//!") and text:
            head.append(text)
        elif head:
            break
    paragraph = " ".join(head)
    sentence = re.match(r".*?[.?!](?=\s|$)", paragraph)
    return sentence.group() if sentence else paragraph


def main() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    files = sorted(ROOT.glob("crates/*/src/**/*.rs"), key=lambda path: (path.parent, path.name not in FACES, path.name))
    wanted = [path for path in files if not sys.argv[1:] or any(part in str(path) for part in sys.argv[1:])]
    for folder, inside in groupby(wanted, lambda path: path.parent):
        print(f"\n{folder.relative_to(ROOT)}/")
        for path in inside:
            print(f"  {path.name:<22} {first_sentence(path)}")


main()
