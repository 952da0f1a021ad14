"""make overhead: what lowtide costs a program that never reaches its limit (twice its native peak).

Pairs of a native and a lowtide run, interleaved and in alternating order, nothing sampled meanwhile. Prints for each program
the medians, their ratio, the median of the ratios of the pairs, and the spread (half the distance between the quartiles).
OVERHEAD_PAIRS (default 9, at least 7) sets how many. Makes bench/results/overhead.md.
"""

import os
import statistics
import sys

import lab

PAIRS = max(7, int(os.environ.get("OVERHEAD_PAIRS", "9")))
PROGRAMS = {
    "C, one malloc (512 MiB)": [lab.compiled("one_malloc"), "512", "zwtn"],
    "C, 6 M small mallocs": [lab.compiled("small_mallocs"), "6000000"],
    "numpy, sort and md5": [str(lab.PYTHON), str(lab.ROOT / "tests/programs/numpy_arrays.py"), "rows", "384"],
}


def spread(values: list[float]) -> float:
    quartiles = statistics.quantiles(values, n=4)
    return (quartiles[2] - quartiles[0]) / 2


def main() -> int:
    lab.require_lowtide()
    page = lab.Page("overhead", "OVERHEAD_PAIRS", plain=True)
    page.print(f"{PAIRS} interleaved pairs each; the limit, twice the native peak, is never reached")
    page.print(f"  {'program':<26} {'native':>9} {'lowtide':>9} {'of medians':>11} {'of pairs':>9} {'spread':>8}")
    worst = 0.0
    for name, command in PROGRAMS.items():
        first = lab.run(command)  # also warms the caches
        ram = first.peak * 2
        native, limited = [], []
        for pair in range(PAIRS):
            for kind in ("native", "limited") if pair % 2 == 0 else ("limited", "native"):
                result = lab.run(command, ram=None if kind == "native" else ram, sample=False)
                if (result.status, result.stdout) != (first.status, first.stdout):
                    print(f"{name}, {kind}: status {result.status}, {result.stdout!r}, {result.stderr}", file=sys.stderr)
                    return 1
                if kind == "limited" and result.stats.get("evictions", {}).get("pages", 0):
                    print(f"{name}: pages were evicted under twice the peak", file=sys.stderr)
                    return 1
                (native if kind == "native" else limited).append(result.seconds)
        medians = statistics.median(limited) / statistics.median(native)
        pairs = [b / a for a, b in zip(native, limited)]
        worst = max(worst, medians)
        page.print(
            f"  {name:<26} {statistics.median(native):>8.3f}s {statistics.median(limited):>8.3f}s {medians - 1:>+10.2%}"
            f" {statistics.median(pairs) - 1:>+9.2%} {spread(pairs):>7.2%}"
        )
    page.print(f"worst ratio of medians: {worst - 1:+.2%} (the promise: at most +1 %)")
    page.write()
    return 0


sys.exit(main())
