#!/usr/bin/env python3
"""fault_costs KERNEL [CPUS...]: what a fault costs that a fault handler thread serves, the thread itself, or the kernel from zram; as root.

Boots a guest with as many CPUs each time (2 and 4 if none are given) whose clock counts instructions (ICOUNT of tests/vm/vm), and prints a table for each.
A program of 24 MiB reads its pages at random, in 16 MiB: under lowtide with `--swap ram`, and in a memory cgroup of that size with zram (lz4, one page a
fault, as for lowtide). Of each fault: switches of threads, wake-ups and system calls of the whole machine, while the kernel counts, and instructions of the
whole machine, while it does not; those of the same program with all of its memory are taken off. What is evicted to make room is a part of it. Then processes one after the other that live
only for some hundred faults each: what one of them takes, that of registering it included.

LOWTIDE_QUICK=1 takes the binary of target/quick. TIMEOUT as for tests/vm/vm (3600 here).
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import lab
import zram
from images import ROOT, fail

RAM, DATA, ROUNDS = 16 << 20, 24, 4
THREADS = (1, 2, 4)
# What is asked of faults in the thread.
MOST_OF_MONITORS = 0.6
# Short processes: how many, of so many MiB, which they fill and then touch so often at random.
PROCESSES, SHORT, TOUCHES = 8, 20, 400


@dataclass
class Measured:
    """What one run of the program has shown. `of` is how many faults that was, while the clock ran and while the kernel counted; `own`: served by their threads."""

    ns: int
    counts: list[int] | None
    of: tuple[int, int]
    own: int = 0

    def each(self, base: int) -> list[str]:
        if self.counts is None:
            return ["-"] * 3 + [f"{(self.ns - base) / self.of[0]:,.0f}"]
        return [f"{count / self.of[1]:.2f}" for count in self.counts] + [f"{(self.ns - base) / self.of[0]:,.0f}"]


def measure(command: list[str], threads: int, faults) -> Measured:
    """Runs the program after these words. `faults` says of its process how many it has had so far, and how many its threads have served."""
    program = [lab.compiled("touch_costs"), str(threads), str(DATA), str(ROUNDS)]
    child = subprocess.Popen([*command, *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def line() -> str:
        text = child.stdout.readline()
        if not text:
            sys.exit(f"fault_costs: {' '.join(command)} ended with {child.wait()}")
        return text

    line()
    seen = [faults(child.pid)]
    child.stdin.write("\n")
    ns = int(line())
    seen.append(faults(child.pid))
    child.stdin.write("\n")
    words = line().split()
    seen.append(faults(child.pid))
    child.stdin.write("\n")
    if child.wait() != 0:
        sys.exit(f"fault_costs: {' '.join(command)} ended with {child.returncode}")
    of = [later[0] - earlier[0] for earlier, later in zip(seen, seen[1:])]
    counts = None if "-" in words else [int(word) for word in words]
    return Measured(ns, counts, (of[0], of[1]), seen[2][1] - seen[0][1])


def by_lowtide(way: str, threads: int) -> Measured:
    with tempfile.TemporaryDirectory() as directory:
        # Its control socket is there: no other run is asked.
        os.environ["XDG_RUNTIME_DIR"] = directory

        def faults(pid: int) -> tuple[int, int]:
            said = subprocess.run([lab.MEASURED, "stat", "--json", str(pid)], stdout=subprocess.PIPE, check=True)
            found = json.loads(said.stdout)["faults"]
            return found["total"], found["in_thread"]

        return measure([str(lab.MEASURED), "run", "--quiet", "--ram", str(RAM), "--swap", "ram", "--faults", way, "--"], threads, faults)


def major_faults(pid: int) -> tuple[int, int]:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[9]), 0


def by_zram(threads: int) -> Measured:
    with zram.limited(RAM) as words:
        return measure(words, threads, major_faults)


def short_processes(way: str) -> str:
    """A row."""
    with tempfile.TemporaryDirectory() as directory:
        stats = Path(directory, "stats")
        command = [lab.MEASURED, "run", "--quiet", "--ram", str(RAM), "--swap", "ram", "--faults", way, "--stats", stats, "--"]
        loop = ["sh", "-c", f'for i in $(seq {PROCESSES}); do "$0" {SHORT} {TOUCHES} random t || exit; done', lab.compiled("touches")]
        began = time.monotonic_ns()
        subprocess.run([*command, *loop], stdout=subprocess.DEVNULL, check=True)
        ns = time.monotonic_ns() - began
        faults = json.loads(stats.read_text())["faults"]
    return f"| {way} | {faults['total'] / PROCESSES:,.0f} | {faults['in_thread'] / faults['total']:.1%} | {ns / PROCESSES / 1e6:,.1f} |"


def inside() -> None:
    """In a guest."""
    counts = "vm.icount" in Path("/proc/cmdline").read_text()
    if not Path("/sys/kernel/tracing/events").exists():
        subprocess.run(["mount", "-t", "tracefs", "tracefs", "/sys/kernel/tracing"], check=False)
    cpus = len(os.sched_getaffinity(0))
    base = {threads: measure([], threads, lambda _: (0, 0)).ns for threads in THREADS}
    zram.make("lz4")
    ways = {way: (lambda threads, way=way: by_lowtide(way, threads)) for way in ("monitor", "in-thread")} | {"zram": by_zram}
    print(f"{os.uname().release}, {cpus} CPUs")
    print(f"| served by | threads | faults | by the thread itself | switches | wake-ups | system calls | {'instructions' if counts else 'ns'} |\n|---|{'---|' * 7}")
    costs = {}
    for way, of in ways.items():
        for threads in THREADS:
            seen = of(threads)
            costs[way, threads] = (seen.ns - base[threads]) / seen.of[0]
            own = f"{seen.own / sum(seen.of):.1%}" if way != "zram" else "-"
            print(f"| {way} | {threads} | {sum(seen.of):,} | {own} | {' | '.join(seen.each(base[threads]))} |", flush=True)
    for threads in THREADS:
        part = costs["in-thread", threads] / costs["monitor", threads]
        word = "" if part <= MOST_OF_MONITORS else f": more than {MOST_OF_MONITORS}"
        print(f"{threads} threads: in the thread {part:.2f} of what a monitor takes{word}; by zram {costs['zram', threads] / costs['monitor', threads]:.2f}")
    print(f"\n| short processes, `--faults` | faults of each | by the thread itself | {'million instructions' if counts else 'ms'} of each |\n|---|---|---|---|")
    for way in ("monitor", "auto", "in-thread"):
        print(short_processes(way), flush=True)


def main(arguments: list[str]) -> int:
    if arguments == ["--inside"]:
        inside()
        return 0
    if not arguments or not all(word.isdigit() for word in arguments[1:]):
        fail("usage: fault_costs KERNEL [CPUS...], such as: fault_costs 7.2 2 4")
    # An emulated guest would take long to compile it.
    for program in ("touch_costs", "touches"):
        lab.compiled(program)
    quick = "LOWTIDE_QUICK=1 " if os.environ.get("LOWTIDE_QUICK") else ""
    environment = {"TIMEOUT": "3600", **os.environ, "ICOUNT": "1"}
    with contextlib.suppress(KeyError):
        del environment["SLOW"]
    for cpus in arguments[1:] or ["2", "4"]:
        command = [ROOT / "tests/vm/vm", arguments[0], cpus, "2G", f"{quick}python3 tests/vm/fault_costs.py --inside"]
        status = subprocess.run(command, env=environment).returncode
        if status != 0:
            return status
    return 0


sys.exit(main(sys.argv[1:]))
