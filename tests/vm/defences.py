"""What becomes of a program when a BPF program lacks one of its checks; as root, where BPF programs can be loaded:
make defences, or SLOW=10 tests/vm/vm 7.2 2 2G 'ONLY="traced,io_uring" python3 tests/vm/defences.py'.

For each reason for which a fault is not told to its thread (docs/design/in-thread.md) a case of tests/programs/own_faults.c is run as it is, and
without the check for that reason, by LOWTIDE_WITHOUT. That takes a binary with the feature `faults`, in target/faults/quick, with which nothing else
differs but that large removals are done in parts. A case that is right without the check shows nothing of it.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import lab

LOWTIDE = lab.ROOT / "target/faults/quick/lowtide"
# Seconds, by the guest's clock: for a run with all checks, and at least for one that lacks one, which gets three times as long as it took with it.
RIGHT, LEAST = 120, 10
# The reason, the case that is about it, and, where they are not the usual ones, MiB of memory in 16, and where pages go.
CHECKS = [
    ("kernel mode", "calls"),
    ("another process", "killed"),
    ("traced", "traced"),
    ("signal blocked", "blocked"),
    ("another handler", "takes_signal"),
    ("no stack", "brims"),
    ("unknown stack", "coroutines", "24", "--swap ram --faults auto"),
    ("seccomp", "filtered"),
    ("seccomp", "strict"),
    ("user dispatch", "dispatch"),
    ("io_uring", "rings"),
    ("declined", "touches", "18", "--swap auto --pool 0"),
    ("protected", "zeros"),
    ("asked already", "storm"),
]


def outcome(program: Path, case: str, mib: str, places: str, limit: float, without: str | None) -> str:
    """What a user sees of it within so many seconds."""
    environment = {**os.environ, "LOWTIDE_PAGE_FAULTS": "in-thread", **({"LOWTIDE_WITHOUT": without} if without else {})}
    command = [LOWTIDE, "run", "--quiet", "--ram", "16M", *places.split(), "--", program, case, mib]
    running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, err = running.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, 9)
        running.communicate()
        return f"no end within {limit:.0f} s"
    if (running.returncode, out) == (0, f"{case}: right\n"):
        return "right"
    said = " / ".join(err.strip().splitlines()[:2]) or "nothing said"
    return f"status {running.returncode}: {said}"


def main() -> None:
    only = os.environ.get("ONLY", "").split(",")
    program = lab.compiled("own_faults")
    if outcome(program, "touches", "18", "--swap ram", RIGHT, "no such check") == "right":
        sys.exit(f"{LOWTIDE} does not know LOWTIDE_WITHOUT: it was built without the feature `faults`")
    failed = False
    print("| check | case | without it |\n|---|---|---|")
    for why, case, *options in CHECKS:
        if only != [""] and why not in only and case not in only:
            continue
        mib, places = options or ("24", "--swap auto")
        start = time.monotonic()
        with_all = outcome(program, case, mib, places, RIGHT, None)
        took = time.monotonic() - start
        failed |= with_all != "right"
        limit = max(LEAST, 3 * took)
        start = time.monotonic()
        found = outcome(program, case, mib, places, limit, why) if with_all == "right" else f"not tried: with it {with_all}"
        if found == "right":
            found += f", in {time.monotonic() - start:.0f} s; with it in {took:.0f} s"
        print(f"| {why} | `{case}`{f', `{places}`' if options else ''} | {found} |", flush=True)
    sys.exit(failed)


main()
