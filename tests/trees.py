"""make trees: whole process trees, natively and at 40 % of what they take natively, and a script of many short processes.

Each tree's output must be the native one's, and its memory with lowtide's own at most 1.10 x --ram + 32 MiB at every sample but those of the first 100 ms
after a large process has forked; the highest of all samples stands beside it. As root a memory cgroup counts it, every 10 ms. The sum over processes
(anonymous pages, each divided by how many processes map it) stands beside it, every 100 ms; it takes up to half a second, in which pages move from one
process to another, so it decides only where there is no cgroup. TREES_PERCENT (default 40) and TREES_PAIRS (default 9) change the rest.
Makes bench/results/trees.md; TREES=name,name runs some and makes no page.
"""

import os
import shutil
import statistics
import sys
from pathlib import Path

import lab

PROGRAMS = lab.ROOT / "tests/programs"
WORK = lab.TARGET / "lab/trees"
PERCENT = int(os.environ.get("TREES_PERCENT", "40"))
PAIRS = max(7, int(os.environ.get("TREES_PAIRS", "9")))
ONLY = set(filter(None, os.environ.get("TREES", "").split(",")))
DEADLINE = 1200.0
LEAST_RAM = 16 * lab.MIB


def python(script: str, *arguments: object) -> list[str]:
    return [str(lab.PYTHON), str(PROGRAMS / script), *map(str, arguments)]


def trees() -> dict[str, list[str]]:
    units = WORK / "units"
    return {
        "make": ["make", "--no-print-directory", "-B", "-j4", "-C", str(units)],
        "fork": python("shared_arrays.py", "fork", 192, 4),
        "spawn": python("shared_arrays.py", "spawn", 192, 4),
        "server": [lab.compiled("tree_server"), "192", "6", "24", "24000", "1000"],
        "redis": python("redis_saves.py", WORK / "redis", 20, 300_000),
        # Natively nobody else would wait for the child.
        "orphan": ["sh", "-c", 'exec "$0" orphan 256 | cat', lab.compiled("forks")],
        "threads": [lab.compiled("fork_malloc"), "8", "60", "192"],
    }


def prepare() -> None:
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    made = lab.run(python("many_units.py", WORK / "units", 31))
    if made.status:
        sys.exit(made.stderr)


def bound(ram: int) -> int:
    return ram + ram // 10 + 32 * lab.MIB


def run_tree(page: lab.Page, name: str, command: list[str]) -> list[str]:
    """Runs one tree twice; what is wrong."""
    native = lab.run(command, copies=True, deadline=DEADLINE)
    if native.status or native.ended_by:
        return [f"{name}: natively status {native.status} {native.ended_by}\n{native.stderr[-2000:]}"]
    ram = max(native.settled_peak * PERCENT // 100, LEAST_RAM)
    limited = lab.run(command, ram=ram, copies=True, deadline=DEADLINE)
    stats = limited.stats
    settled, peak = limited.group_settled_peak, limited.group_peak
    if settled is None:
        settled, peak = limited.settled_peak, limited.peak
    page.print(
        f"| {name} | {lab.mib(native.settled_peak)}, {native.seconds:.1f} s | {lab.mib(ram)} | {lab.mib(settled)} of {lab.mib(bound(ram))}"
        f" | {lab.mib(peak)} | {lab.mib(limited.settled_peak)} | {limited.seconds:.1f} s | {len(stats.get('pids', []))} | {stats.get('evictions', {}).get('pages', 0):,} |"
    )
    wrong = []
    if limited.ended_by:
        wrong.append(f"no end after {DEADLINE:.0f} s")
    elif limited.status:
        wrong.append(f"status {limited.status}")
    elif limited.stdout != native.stdout:
        wrong.append(f"prints {limited.stdout[-1000:]!r}, natively {native.stdout[-1000:]!r}")
    if settled > bound(ram):
        wrong.append(f"{lab.mib(settled)} in a sample, allowed are {lab.mib(bound(ram))}")
    if not stats.get("evictions", {}).get("pages"):
        wrong.append("nothing was evicted")
    return [f"{name} at {lab.mib(ram)}: {what}\n{limited.stderr[-2000:]}" for what in wrong]


def short_processes(page: lab.Page) -> list[str]:
    """What lowtide costs a script below the limit, and a process that does nothing at all."""
    page.print(f"\n{PAIRS} interleaved pairs each, the limit is never reached\n\n| script | native | lowtide | of medians | spread of pairs |\n|---|---|---|---|---|")
    scripts = {
        "text tools": ["sh", str(PROGRAMS / "short_processes.sh"), str(WORK / "short"), "15"],
        "true, 300 times": ["sh", "-c", "i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done"],
    }
    wrong = []
    for name, command in scripts.items():
        first = lab.run(command, sample=False)
        native, limited = [], []
        for pair in range(PAIRS):
            for kind in ("native", "limited") if pair % 2 == 0 else ("limited", "native"):
                result = lab.run(command, ram=None if kind == "native" else 1 << 30, sample=False)
                if (result.status, result.stdout) != (first.status, first.stdout):
                    return [f"{name}, {kind}: status {result.status}, {result.stdout[-500:]!r}\n{result.stderr[-500:]}"]
                (native if kind == "native" else limited).append(result.seconds)
        medians = statistics.median(limited) / statistics.median(native) - 1
        quartiles = statistics.quantiles((b / a for a, b in zip(native, limited)), n=4)
        page.print(
            f"| {name} | {statistics.median(native):.3f} s | {statistics.median(limited):.3f} s | {medians:+.1%} | {(quartiles[2] - quartiles[0]) / 2:.1%} |"
        )
        if name == "text tools" and medians > 0.05:
            wrong.append(f"{name}: {medians:+.1%}, the promise is +5 % at most")
    return wrong


def main() -> None:
    lab.require_lowtide()
    prepare()
    wrong = []
    page = lab.Page("trees", "TREES_PERCENT", "TREES_PAIRS")
    page.print(f"| tree | native: peak, time | `--ram` ({PERCENT} %) | highest sample, of | with the 100 ms after forks | sum over processes | time | processes | pages out |")
    page.print("|---|---|---|---|---|---|---|---|---|")
    for name, command in trees().items():
        if not ONLY or name in ONLY:
            wrong += run_tree(page, name, command)
    if not ONLY or "short" in ONLY:
        wrong += short_processes(page)
    if not ONLY:
        page.write()
    shutil.rmtree(WORK, ignore_errors=True)
    if wrong:
        sys.exit("\n".join(wrong))


main()
