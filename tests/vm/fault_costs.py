"""Context switches of a fault that a fault handler thread serves, and of one that the thread serves itself; as root, where BPF programs can be loaded:
SLOW=20 tests/vm/vm 7.2 2 2G 'python3 tests/vm/fault_costs.py'.

A program of 24 MiB in 16 MiB touches its pages at random, twelve times each. All faults of a run are counted, the switches from when all threads touch.
LOWTIDE_QUICK=1 takes the binary of target/quick.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import lab

LOWTIDE = lab.ROOT / "target/quick/lowtide" if os.environ.get("LOWTIDE_QUICK") else lab.LOWTIDE


def main() -> None:
    program = lab.compiled("touch_costs")
    print("| served by | threads | faults | by the thread itself | switches of the program a fault | of lowtide |\n|---|---|---|---|---|---|")
    for way in ["monitor", "in-thread"]:
        for threads in [1, 2, 4]:
            with tempfile.TemporaryDirectory() as directory:
                stats = Path(directory) / "stats"
                command = [LOWTIDE, "run", "--quiet", "--ram", "16M", "--swap", "ram", "--faults", way, "--stats", stats, "--", program]
                done = subprocess.run([*command, str(threads), "24", "12"], stdout=subprocess.PIPE, text=True)
                if done.returncode != 0:
                    sys.exit(done.returncode)
                faults = json.loads(stats.read_text())["faults"]
            own, lowtide = (int(word) / faults["total"] for word in done.stdout.split())
            print(f"| {way} | {threads} | {faults['total']:,} | {faults['in_thread'] / faults['total']:.1%} | {own:.2f} | {lowtide:.2f} |", flush=True)


main()
