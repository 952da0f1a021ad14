"""make report: what the report predicts for more RAM, against runs with that much.

Each load runs with its own limit and --report, then with the other limits, of which the report has said how long they would take. Medians of
REPORT_ROUNDS runs each (default 3), in turn. Exit status 1 when a prediction is off by more than 30 %.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lab

ROUNDS = int(os.environ.get("REPORT_ROUNDS", "3"))
MOST_OFF = 0.30
MIB = 1 << 20


class Load:
    def __init__(self, name: str, command: list[str], ram: int, others: list[int], swap: str = "auto"):
        self.name, self.command, self.ram, self.others, self.swap = name, command, ram, others, swap


def sort(directory: str) -> list[str]:
    """GNU sort of lines in no order."""
    lines = Path(directory) / "lines"
    with lines.open("w") as file:
        number = 1
        for _ in range(4_000_000):
            number = number * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
            file.write(f"{number:020d} {number >> 40}\n")
    return ["sort", "-S", "1G", "--parallel=1", "-o", "/dev/null", str(lines)]


def loads(directory: str) -> list[Load]:
    touches = lab.compiled("touches")
    return [
        Load("random touches, 3:1", [touches, "320", "700000", "random", "t"], 192, [240, 288], "ram"),
        Load("skewed touches, noise, disk", [touches, "256", "500000", "skewed", "n"], 128, [160, 192]),
        Load("read round and round, 3:1", [touches, "320", "1200000", "round", "t"], 192, [240, 288], "ram"),
        Load("GNU sort", sort(directory), 192, [240, 288]),
    ]


def run(load: Load, ram: int, report: Path | None = None) -> float:
    options = ["--quiet", "--ram", f"{ram}M", "--swap", load.swap, *(["--report", str(report)] if report else [])]
    start = time.monotonic()
    subprocess.run([lab.LOWTIDE, "run", *options, "--", *load.command], check=True, capture_output=True, timeout=280)
    return time.monotonic() - start


def predicted(report: Path, ram: int) -> float:
    """What the row of this limit says; between two rows, in proportion."""
    rows = re.findall(r'data-ram="(\d+)" data-seconds="([\d.]+)"', report.read_text())
    points = [(int(size) / MIB, float(seconds)) for size, seconds in rows]
    for (low, before), (high, after) in zip(points, points[1:]):
        if low <= ram <= high:
            return before + (after - before) * (ram - low) / (high - low)
    return points[-1][1]


def main() -> int:
    lab.require_lowtide()
    only = sys.argv[1:]
    worst = 0.0
    print(f"medians of {ROUNDS} rounds; a prediction is that of the median report")
    print(f"  {'load':<28} {'--ram':>8} {'measured':>10} {'predicted':>10} {'off':>7}   {'measured gain':>13} {'predicted':>9}")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        for load in loads(directory):
            if only and not any(word in load.name for word in only):
                continue
            measured: dict[int, list[float]] = {ram: [] for ram in [load.ram, *load.others]}
            said: dict[int, list[float]] = {ram: [] for ram in load.others}
            for number in range(ROUNDS):
                for ram in measured if number % 2 == 0 else reversed(measured):
                    report = Path(directory) / "report.html" if ram == load.ram else None
                    measured[ram].append(run(load, ram, report))
                    for other in load.others if report else []:
                        said[other].append(predicted(report, other))
            base = statistics.median(measured[load.ram])
            print(f"  {load.name:<28} {load.ram:>4} MiB {base:>8.2f} s {'(the run)':>10}")
            for ram in load.others:
                real, told = statistics.median(measured[ram]), statistics.median(said[ram])
                off = told / real - 1
                worst = max(worst, abs(off))
                print(
                    f"  {'':<28} {ram:>4} MiB {real:>8.2f} s {told:>8.2f} s {off:>+6.0%}   {base / real:>11.2f} x {base / told:>7.2f} x",
                    flush=True,
                )
    print(f"worst: {worst:.0%} off (the promise: at most {MOST_OFF:.0%})")
    return int(worst > MOST_OFF)


sys.exit(main())
