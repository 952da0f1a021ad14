"""make pools: the default size of the compressed pool against fixed sizes of it.

Six loads of `lowtide-lab race` in 70 % of their native peak (POOLS_PERCENT), with `--pool` of 0, an eighth, a quarter and a half of that, and five sixths,
and by default, in turn. Prints for each load which fixed size was quickest, in what time, the ratio of the default's time to that, and all medians.
POOLS_ROUNDS (default 3) sets how many runs each. Makes bench/results/pools.md; POOLS=name,name runs some and makes no page.
"""

import os
import shutil
import statistics
import subprocess
import sys

import lab

JOBS = lab.ROOT / "crates/lowtide-lab/src/race/jobs"
ROUNDS = int(os.environ.get("POOLS_ROUNDS", "3"))
PERCENT = int(os.environ.get("POOLS_PERCENT", "70"))
ONLY = set(filter(None, os.environ.get("POOLS", "").split(",")))
SHARES = {"0": 0, "1/8": 1 / 8, "1/4": 1 / 4, "1/2": 1 / 2, "5/6": 5 / 6}


def python_with(module: str) -> str | None:
    """A Python that has a module: the tests' own, or the machine's."""
    pythons = [str(lab.PYTHON), shutil.which("python3")]
    return next((p for p in pythons if p and subprocess.run([p, "-c", f"import {module}"], capture_output=True).returncode == 0), None)


def loads() -> dict[str, list[str] | None]:
    def job(module: str, script: str, *arguments: object) -> list[str] | None:
        python = python_with(module)
        return python and [python, str(JOBS / script), *map(str, arguments)]

    node = shutil.which("node")
    return {
        "matrices": job("numpy", "matrices.py", 3_000_000),
        "columns": job("numpy", "arrays.py", 200, 10),
        "objects": job("zlib", "objects.py", 220_000),
        "SQLite": job("sqlite3", "sqlite.py", 350_000, 150_000),
        "DuckDB": job("duckdb", "duckdb_job.py", 1_200_000),
        "node": node and [node, "--max-old-space-size=2048", "--max-semi-space-size=16", str(JOBS / "heap.js"), "350000", "500000"],
    }


def measured(name: str, command: list[str]) -> str:
    native = lab.run(command)
    ram = native.peak * PERCENT // 100
    times = {share: [] for share in [*SHARES, "default"]}
    for turn in range(ROUNDS):
        for share in list(times)[:: 1 if turn % 2 == 0 else -1]:
            options = [] if share == "default" else ["--pool", str(int(ram * SHARES[share]) >> 20 << 20)]
            result = lab.run(command, ram=ram, options=options, sample=False)
            if result.status != native.status:
                sys.exit(f"{name}, --pool {share}: status {result.status}, {result.stderr}")
            times[share].append(result.seconds)
    medians = {share: statistics.median(seconds) for share, seconds in times.items()}
    best = min(SHARES, key=medians.__getitem__)
    every = ", ".join(f"{share}: {seconds:.2f}" for share, seconds in medians.items())
    ratio = medians["default"] / medians[best]
    return f"| {name} | {ram >> 20} MiB | {best} | {medians[best]:.2f} s | {ratio:.2f} | {every} |"


def main() -> int:
    lab.require_lowtide()
    page = lab.Page("pools", "POOLS_ROUNDS", "POOLS_PERCENT")
    page.print(f"{ROUNDS} runs each in {PERCENT} % of the native peak, in turn; sizes as shares of --ram; medians\n")
    page.print("| load | `--ram` | best fixed | its time | default | all |\n|---|---|---|---|---|---|")
    for name, command in loads().items():
        if ONLY and name not in ONLY:
            continue
        page.print(measured(name, command) if command else f"| {name} | SKIPPED: no interpreter or module for it |")
    if not ONLY:
        page.write()
    return 0


sys.exit(main())
