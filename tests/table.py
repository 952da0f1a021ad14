"""make table: the table of the README: three programs, native against lowtide at 70 % and at 40 % of their peak.

Each cell is the median of TABLE_RUNS runs (default 3); the peak is the highest of them.
"""

import os
import platform
import statistics
import sys

import lab

RUNS = int(os.environ.get("TABLE_RUNS", "3"))


def programs() -> dict[str, list[str]]:
    lines = lab.TARGET / "lab/lines-1500k.txt"
    lines.parent.mkdir(parents=True, exist_ok=True)
    if not lines.exists():
        state = 3
        with open(lines, "w") as file:
            for _ in range(1_500_000):
                state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
                file.write(f"{state >> 40} field{state >> 33 & 15}=value-of-{state >> 37 & 15}-value-of-{state >> 41 & 15}-\n")
    return {
        "numpy: sort, xor, md5": [str(lab.PYTHON), str(lab.ROOT / "tests/programs/numpy_arrays.py"), "rows", "1024"],
        "GNU sort of 1.5 M lines": ["sh", "-c", f"sort -S 1G --parallel=2 {lines} | md5sum"],
        "800 k small Python objects": [str(lab.PYTHON), str(lab.ROOT / "tests/programs/small_objects.py"), "400000"],
    }


def measure(command: list[str], ram: int | None, expected: lab.Result | None) -> lab.Result:
    results = [lab.run(command, ram=ram, env={"PYTHONHASHSEED": "0"}) for _ in range(RUNS)]
    for result in results:
        if result.status != 0 or expected and result.stdout != expected.stdout:
            sys.exit(f"{command}, --ram {ram}: status {result.status}, {result.stdout!r}\n{result.stderr}")
    middle = sorted(results, key=lambda result: result.seconds)[len(results) // 2]
    middle.peak = max(result.peak for result in results)
    middle.seconds = statistics.median(result.seconds for result in results)
    return middle


def main() -> None:
    lab.require_lowtide()
    print(f"<!-- make table: {os.cpu_count()} CPUs, Linux {platform.release().split('-')[0]}, median of {RUNS} runs -->")
    print("| program | native: peak RAM, time | limit 70 % of that peak: peak, time | limit 40 %: peak, time |\n|---|---|---|---|")
    for name, command in programs().items():
        native = measure(command, None, None)
        cells = [f"{lab.mib(native.peak)}, {native.seconds:.1f} s"]
        for percent in (70, 40):
            limited = measure(command, native.peak * percent // 100, native)
            cells.append(f"{lab.mib(limited.peak)}, {limited.seconds:.1f} s")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


main()
