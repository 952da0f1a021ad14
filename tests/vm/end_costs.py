#!/usr/bin/env python3
"""end_costs [RUNS]: how long `lowtide run` takes after the last line of its program, with each way to serve faults; as root, in a guest:

tests/vm/vm 7.2 2 2G tests/vm/end_costs.py. LOWTIDE_QUICK=1 takes the binary of target/quick.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import lab

# Many faults, so that threads serve their own by default too.
PROGRAM = [lab.compiled("own_faults"), "while_worthwhile", "24"]


def main(runs: int) -> None:
    print("| `--faults` | ms after the last line | seconds of all | faults that threads served |\n|---|---|---|---|")
    for way in ("monitor", "auto", "in-thread"):
        ends, alls, own = [], [], []
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as directory:
                stats = Path(directory, "stats")
                command = [lab.MEASURED, "run", "--quiet", "--ram", "16M", "--swap", "ram", "--faults", way, "--stats", stats, "--", *PROGRAM]
                began = time.monotonic()
                running = subprocess.Popen(command, stdout=subprocess.PIPE)
                running.stdout.readline()
                said = time.monotonic()
                if running.wait() != 0:
                    sys.exit(f"end_costs: --faults {way}: status {running.returncode}")
                ended = time.monotonic()
                ends.append(f"{(ended - said) * 1000:.0f}")
                alls.append(f"{ended - began:.1f}")
                own.append(f"{json.loads(stats.read_text())['faults']['in_thread']:,}")
        print(f"| {way} | {' '.join(ends)} | {' '.join(alls)} | {' '.join(own)} |", flush=True)


main(int(sys.argv[1]) if sys.argv[1:] else 5)
