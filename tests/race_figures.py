"""The README's paragraph about the race, made of bench/results/race.md and race-burner.md, so that it can't say anything else.

`make race` runs this, which puts it there; `make links` compares it.
"""

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
README = ROOT / "README.md"
BEGIN, END = "<!-- Made by tests/race_figures.py of bench/results/race.md. -->\n", "\n<!-- End of the race. -->"
PEAK = "lowtide: highest peak of memory / limit"
# What the README calls the loads.
WORDS = {
    "sequential": "1 GiB sequentially",
    "random-read": "random reads",
    "random-write": "random writes",
    "threads": "random reads by 4 threads",
    "zipf": "zipf reads",
    "zeros": "random reads, 80 % zeros",
    "sort": "GNU sort",
    "sqlite": "SQLite",
    "python": "Python objects",
    "redis": "redis-server",
    "saves": "a server that saves itself",
    "javascript": "node",
    "duckdb": "DuckDB",
    "numpy": "numpy: array after array",
    "matrices": "numpy: sorts, an FFT, a product",
}


def tables(text: str) -> list[list[dict[str, str]]]:
    r"""The rows of each table, by column.

    >>> tables("| a | b |\n|---|---|\n| 1 | 2 |\n\n| c |\n|---|\n| 3 |\n")
    [[{'a': '1', 'b': '2'}], [{'c': '3'}]]
    """
    found = []
    for table in re.findall(r"^\|.*\n\|[-| ]+\|\n(?:\|.*(?:\n|$))*", text, re.M):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines())
        found.append([dict(zip(head, row)) for row in rows])
    return found


class Race:
    """What a page of the race says."""

    def __init__(self, text: str) -> None:
        rows = [row for table in tables(text) for row in table]
        times = [row for row in rows if "kernel / lowtide" in row]
        # kernel / lowtide of each load; one that the kernel killed has none.
        self.ratios = {next(iter(row.values())): float(row["kernel / lowtide"]) for row in times if row["kernel / lowtide"] != "-"}
        self.findings = {row["what"]: row for row in rows if "what" in row}

    def mean(self) -> str:
        return f"{float(self.findings['geometric mean']['ratio']):.2f}"

    def missed(self) -> str:
        """A sentence about the targets that this run misses; empty: it misses none."""
        targets = []
        for what, row in self.findings.items():
            if row.get("") == "MISSED":
                target = float(row["target"].split()[1])
                named = {"geometric mean": f"a mean of {target:g}", PEAK: f"a peak of {target * 100:.0f} % of the limit"}
                targets.append(named.get(what, what))
        count = {1: "one target", 2: "two targets"}.get(len(targets), f"{len(targets)} targets")
        return f"This run misses {count}: {', and '.join(targets)}." if targets else ""


def paragraph(race: Race, burner: Race) -> str:
    """What the README says.

    >>> table = "| load | kernel / lowtide |\\n|---|---|\\n| sequential | 3.5 |\\n| gcc | 0.9 |\\n| redis | 1.1 |\\n| numpy | 2 |\\n| matrices | 1 |\\n\\n"
    >>> found = (
    ...     "| what | ours | ratio | target |  |\\n|---|---|---|---|---|\\n| geometric mean | 5 loads | 1.506 | >= 1.600 | MISSED |\\n"
    ...     "| lowtide: highest peak of memory / limit | gcc | 1.01 | <= 1.020 | ok |\\n"
    ... )
    >>> print(paragraph(Race(table + found), Race(table + found)))
    Against the kernel's own zram, with the same memory in all (70 % of the native peak), lowtide is
    1.51 times as fast: the geometric mean of [5 loads](bench/results/race.md), medians of three rounds,
    printed by `make race`. The loads go from 3.50 (1 GiB sequentially) to 0.90 (gcc); numpy array
    passes have 2.00, numpy sorts and an FFT 1.00, gcc 0.90, redis-server 1.10. lowtide is slower in 1
    of the 5; its highest peak was 101 % of the limit (gcc). This run misses one target: a mean of 1.6.
    Beside a program that burns one of the two CPUs, the mean of [5 loads](bench/results/race-burner.md)
    is 1.51.
    """
    ratios = race.ratios
    best, worst = max(ratios, key=ratios.__getitem__), min(ratios, key=ratios.__getitem__)
    slower = sum(ratio < 1 for ratio in ratios.values())
    of = {name: f"{ratio:.2f}" for name, ratio in ratios.items()}
    peak = race.findings[PEAK]
    highest = f"{float(peak['ratio']) * 100:.0f} % of the limit ({WORDS.get(peak['ours'], peak['ours'])})"
    text = f"""
        Against the kernel's own zram, with the same memory in all (70 % of the native peak), lowtide is {race.mean()} times as fast: the geometric mean
        of [{len(ratios)} loads](bench/results/race.md), medians of three rounds, printed by `make race`. The loads go from {of[best]}
        ({WORDS.get(best, best)}) to {of[worst]} ({WORDS.get(worst, worst)}); numpy array passes have {of["numpy"]}, numpy sorts and an FFT {of["matrices"]},
        gcc {of["gcc"]}, redis-server {of["redis"]}. lowtide is slower in {slower} of the {len(ratios)}; its highest peak was {highest}.
        {race.missed()} Beside a program that burns one of the two CPUs, the mean of [{len(burner.ratios)} loads](bench/results/race-burner.md) is {burner.mean()}."""
    return textwrap.fill(" ".join(text.split()), 100, break_long_words=False, break_on_hyphens=False)


def expected() -> str:
    return paragraph(*(Race((RESULTS / name).read_text()) for name in ("race.md", "race-burner.md")))


def replaced(readme: str) -> str:
    """The README with the paragraph as it must be."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md has no lines {BEGIN.strip()} and {END.strip()}")
    return before + begin + expected() + end + after


if __name__ == "__main__":
    README.write_text(replaced(README.read_text()))
