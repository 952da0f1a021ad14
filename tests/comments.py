#!/usr/bin/env python3
"""make links: comments in crates/*/src have at most 100 columns, and are at most 25 % of all words, and 30 % in each crate.

With `table`: prints the share of each crate. Its own tests are doctests: `python3 -m doctest tests/comments.py`.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 100
# Percent of the words of all crates, and of one. (The documents of the two libraries, and of what two programs share, are their
# comments.)
ALL, ONE, MADE_OF_COMMENTS = 25, 30, {"lowtide-c", "lowtide-region", "lowtide-wire"}
# Here `///` is what commands print as their help.
HELP = {"args.rs", "list.rs", "kernel.rs"}
# Whatever may hold `//` and is none: strings, raw strings, characters. Then comments.
TOKEN = re.compile(r'b?r(#*)".*?"\1|"(?:\\.|[^"\\])*"|\'(?:\\[^\n]{1,8}?|[^\'\\\n])\'|(//[^\n]*|/\*.*?\*/)', re.S)


def words(text: str) -> tuple[int, int]:
    """Words of code and of comments.

    >>> words('let a = "// none"; // two words')
    (3, 2)
    >>> words("fn f<'a>(x: &'a str) -> char { '\\"' } /// three words here")
    (7, 3)
    """
    comments = "\n".join(match[2] for match in TOKEN.finditer(text) if match[2])
    code = TOKEN.sub(lambda match: " " if match[2] else match[0], text)
    return len(re.findall(r"\w+", code)), len(re.findall(r"\w+", comments))


def main() -> int:
    failed, shares = False, {}
    for path in sorted(ROOT.glob("crates/*/src/**/*.rs")):
        text = path.read_text()
        crate = path.relative_to(ROOT).parts[1]
        code, comments = words(text)
        before = shares.get(crate, (0, 0))
        shares[crate] = (before[0] + code, before[1] + comments)
        for number, line in enumerate(text.splitlines(), 1):
            is_help = path.name in HELP and line.lstrip().startswith("///")
            # (Rows of tables and lines of examples can't be wrapped.)
            if len(line) > COLUMNS and re.match(r"\s*//[/!]? (?!\||.*;$)", line) and not is_help:
                failed = True
                print(f"{path.relative_to(ROOT)}:{number}: a comment has {len(line)} columns, and {COLUMNS} are the most", file=sys.stderr)
    shares["all"] = tuple(map(sum, zip(*shares.values())))
    for crate, (code, comments) in shares.items():
        share, most = 100 * comments / (code + comments), ALL if crate == "all" else ONE
        if "table" in sys.argv:
            print(f"{crate:15} {code:7} words of code, {comments:6} of comments, {share:4.1f} %")
        if share > most and crate not in MADE_OF_COMMENTS:
            failed = True
            print(f"{crate}: {share:.1f} % of the words are comments, and {most} % are the most", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
