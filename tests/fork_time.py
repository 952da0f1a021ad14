"""make forktime: how long a fork takes, of a parent of 1 GiB of which half is out, and natively.

Prints the medians and the longest of five forks each: until fork has returned in the parent, and until a child that does nothing has
ended. The last rows are of forks by the bare system call, whose child gets all that is out before it begins. FORK_TIME_MIB (default
1024) sets the size of the parent.
"""

import os
import statistics
import sys

import lab

SIZE = int(os.environ.get("FORK_TIME_MIB", "1024"))
FORKS = 5


def main() -> int:
    lab.require_lowtide()
    command = [lab.compiled("fork_time"), str(SIZE), str(SIZE * 3 // 8), str(FORKS)]
    print(f"a parent of {SIZE} MiB, {FORKS} forks each, in milliseconds: median (longest)")
    print(f"  {'':<28} {'fork in the parent':>20} {'until the child ended':>22} {'MiB evicted':>12}")
    runs = {
        "native": (None, None, []),
        "lowtide, nothing out": (SIZE * 2 * lab.MIB, None, []),
        "lowtide, half out, in RAM": (SIZE * 5 // 8 * lab.MIB, ["--swap", "ram"], []),
        "lowtide, half out, default": (SIZE // 2 * lab.MIB, None, []),
        "raw, half out, in RAM": (SIZE * 5 // 8 * lab.MIB, ["--swap", "ram"], ["raw"]),
        "raw, half out, on a device": (SIZE // 2 * lab.MIB, ["--pool", "0"], ["raw"]),
    }
    for name, (ram, options, call) in runs.items():
        result = lab.run(command + call, ram=ram, options=options, sample=False)
        if result.status != 0:
            print(f"{name}: status {result.status}: {result.stderr}", file=sys.stderr)
            return 1
        columns = zip(*(map(float, line.split()) for line in result.stdout.splitlines()))
        texts = [f"{statistics.median(c) * 1e3:.1f} ({max(c) * 1e3:.1f})" for c in map(list, columns)]
        out = result.stats.get("evictions", {}).get("pages", 0) * 4096 / lab.MIB
        print(f"  {name:<28} {texts[0]:>20} {texts[1]:>22} {out:>12,.0f}", flush=True)
    return 0


sys.exit(main())
