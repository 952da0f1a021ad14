"""Programs that keep many CPUs busy, natively and under lowtide; in a guest: SLOW=20 tests/vm/vm 6.12 16 4G 'python3 tests/vm/many_cpus.py'.

Each must give the native answer, evict, and keep its limit at each sample taken from outside: 1.10 x --ram + 32 MiB, as `make trees` asks; huge pages are as
the machine has them. What lowtide itself took for the highest stands beside it: where that is lower, lowtide did not know; where not, it was late. Then a
program of as many threads rests, half of its memory out: which of lowtide's threads runs meanwhile, and how often? One that spins ends this with status 1.
`MANY_CPUS=name,name` runs some; WORKERS=16: so many threads or processes, however few CPUs there are; RUNS=3: each so many times under lowtide;
REST_SECONDS=60: how long the last one rests, by the guest's clock.
"""

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import lab

CPUS = os.cpu_count() or 1
# Fewer take too little to be limited.
WORKERS = int(os.environ.get("WORKERS", max(CPUS, 8)))
ONLY = set(filter(None, os.environ.get("MANY_CPUS", "").split(",")))
DEADLINE = 3600.0
RUNS = int(os.environ.get("RUNS", "1"))
REST_SECONDS = int(os.environ.get("REST_SECONDS", "10"))
# Of the time of one CPU. A thread that spins has nearly all of it, one that looks a hundred times a second some hundredths.
SPINS = 0.5

POOL = """
import hashlib, multiprocessing, random, sys
def work(seed):
    rng = random.Random(seed)
    blocks = [bytearray(rng.randbytes(256) * 64) for _ in range(int(sys.argv[2]) * 64)]
    sums = [hashlib.md5(block).digest() for block in blocks]
    for _ in range(len(blocks)):
        at = rng.randrange(len(blocks))
        assert hashlib.md5(blocks[at]).digest() == sums[at], f"block {at} of {seed}"
        blocks[at][rng.randrange(len(blocks[at]))] ^= 255
        sums[at] = hashlib.md5(blocks[at]).digest()
    assert [hashlib.md5(block).digest() for block in blocks] == sums
    return hashlib.md5(b"".join(sums)).hexdigest()
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(int(sys.argv[1])) as pool:
        print(pool.map(work, range(int(sys.argv[1])), chunksize=1))
"""


def project(directory: Path) -> list[str]:
    """A make file of as many C files as there are workers; each compiler takes some 30 MiB."""
    names = [f"unit{n}" for n in range(WORKERS)]
    for n, name in enumerate(names):
        rows = ",\n".join(f"{{{n + i * 7919 % 1009}, \"{name} {i}\"}}" for i in range(5_000))
        (directory / f"{name}.c").write_text(f"const struct {{ int number; const char *text; }} {name}[] = {{\n{rows}\n}};\n")
    objects = " ".join(f"{name}.o" for name in names)
    (directory / "Makefile").write_text(f"all: {objects}\n\t@cat {objects} | sha256sum\n%.o: %.c\n\t@cc -c -o $@ $<\n")
    return ["make", "--no-print-directory", "-B", f"-j{WORKERS}", "-C", str(directory)]


@dataclass
class Program:
    command: list[str]
    # What it may have: half of what it takes, or less.
    mib: int
    # It works in forked copies, which are measured too, not in the first 100 ms after a fork; as root by a cgroup.
    copies: bool = True

    def peak(self, result: lab.Result) -> int:
        if not self.copies:
            return result.peak
        return result.settled_peak if result.group_settled_peak is None else result.group_settled_peak


def programs(directory: Path) -> dict[str, Program]:
    stress = ["stress-ng", "--quiet", "--vm", str(WORKERS), "--vm-bytes", f"{12 * WORKERS}M", "--vm-ops", "1600", "--vm-keep", "--verify", "--temp-path", str(directory)]
    return {
        "one_malloc": Program([lab.compiled("one_malloc"), "96", "tz", "500"], 32, copies=False),
        "threads": Program([lab.compiled("many_threads"), str(WORKERS), "128", "250"], 48, copies=False),
        "forks": Program([lab.compiled("forks"), "stay", "48", "1"], 32),
        "stress-ng": Program(stress, 6 * WORKERS),
        "processes": Program([sys.executable, "-c", POOL, str(WORKERS), "6"], 4 * WORKERS),
        "make": Program(project(directory), 4 * WORKERS),
    }


def huge_pages() -> int:
    """How many the kernel has given since it began."""
    return int(dict(map(str.split, Path("/proc/vmstat").read_text().splitlines())).get("thp_fault_alloc", 0))


def run(name: str, program: Program) -> list[str]:
    """Runs it natively, then under lowtide; what is wrong."""
    native = lab.run(program.command, copies=program.copies, deadline=DEADLINE)
    wrong = [f"{name}: natively status {native.status} {native.ended_by} {native.stderr[-500:]}"] if native.status or native.ended_by else []
    return wrong + [what for _ in range(RUNS) for what in run_limited(name, program, native)]


def run_limited(name: str, program: Program, native: lab.Result) -> list[str]:
    bound = program.mib * 1.10 + 32
    huge = huge_pages()
    limited = lab.run(program.command, ram=program.mib * lab.MIB, copies=program.copies, deadline=DEADLINE)
    huge = huge_pages() - huge
    pages = limited.stats.get("evictions", {}).get("pages", 0)
    peak = program.peak(limited) / lab.MIB
    own = limited.stats.get("ram_peak", 0) / lab.MIB
    sizes = [lab.mib(program.peak(native)), f"{program.mib} MiB", f"{peak:.1f} of {bound:.1f} MiB", f"{own:.1f} MiB"]
    cells = [name, *sizes, f"{limited.group_samples or limited.samples}", f"{pages:,}", f"{huge}"]
    print(f"| {' | '.join(cells)} |", flush=True)
    wrong = []
    if limited.status or limited.ended_by:
        wrong.append(f"status {limited.status} {limited.ended_by} {limited.stderr[-1000:]}")
    elif limited.stdout != native.stdout:
        wrong.append(f"prints {limited.stdout[-500:]!r}, natively {native.stdout[-500:]!r}")
    if peak > bound:
        wrong.append(f"{peak:.1f} MiB in a sample, allowed are {bound:.1f}")
    if not pages:
        wrong.append("nothing was evicted")
    return [f"{name}: {what}" for what in wrong]


def looks(pid: int) -> dict[str, tuple[str, int, int]]:
    """Of each of lowtide's threads in a process: its name, nanoseconds on a CPU, and how often it was switched to."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        if name.startswith("lowtide"):
            switches = [int(line.split()[1]) for line in (task / "status").read_text().splitlines() if "ctxt_switches" in line]
            found[task.name] = (name, int((task / "schedstat").read_text().split()[0]), sum(switches))
    return found


def recompressed(run: int) -> int:
    """Pages that a run has compressed again so far: what the reclaimer does where a CPU is free, some seconds after nothing happens any more."""
    asked = subprocess.run([str(lab.LOWTIDE), "stat", "--json", str(run)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return json.loads(asked.stdout)["pages"]["recompressed"] if asked.returncode == 0 else 0


def rest() -> list[str]:
    """A program that does nothing for a while, after it was busy beyond its limit."""
    command = [lab.compiled("many_threads"), str(WORKERS), "96", "200", "100000"]
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen([str(lab.LOWTIDE), "run", "--quiet", "--ram", "48M", "--", *command], stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        try:
            until, text = time.monotonic() + DEADLINE, ""
            while "resting" not in text:
                if child.poll() is not None or time.monotonic() > until:
                    return [f"rest: it does not come to rest: status {child.returncode} {text[-500:]}"]
                time.sleep(0.2)
                errors.seek(0)
                text = errors.read()
            program = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()[0]
            # What was under way may end.
            time.sleep(3)
            again, before, began = recompressed(child.pid), looks(int(program)), time.monotonic()
            time.sleep(REST_SECONDS)
            after, passed = looks(int(program)), time.monotonic() - began
            again = recompressed(child.pid) - again
        finally:
            for process in [*Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split(), child.pid]:
                os.kill(int(process), signal.SIGKILL)
            child.wait()
    wrong, by_name = [], {}
    for thread, (name, cpu, switches) in after.items():
        _, cpu_before, switches_before = before.get(thread, (name, 0, 0))
        share, often = (cpu - cpu_before) / 1e9 / passed, (switches - switches_before) / passed
        by_name.setdefault(name, []).append((share, often))
        if share > SPINS:
            wrong.append(f"rest: {name} {thread} takes {share:.0%} of a CPU")
    for name, each in sorted(by_name.items()):
        shares, often = zip(*each)
        print(f"rest: {len(each)} x {name}: {sum(shares):.2%} of a CPU in all, {max(shares):.2%} at most; {sum(often):.1f} switches a second in all, {max(often):.1f} at most")
    print(f"rest: {again:,} pages were compressed again meanwhile")
    return wrong if by_name else ["rest: lowtide has no thread there"]


def main() -> None:
    lab.require_lowtide()
    setting = re.findall(r"\[(\w+)\]", Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text())
    print(f"Linux {platform.release()}, {CPUS} CPUs, huge pages: {' '.join(setting)}\n")
    print("| program | native peak | `--ram` | highest sample | by lowtide's count | samples | pages out | huge pages given |\n|---|---|---|---|---|---|---|---|", flush=True)
    wrong = []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        for name, program in programs(Path(directory)).items():
            if ONLY and name not in ONLY:
                continue
            if shutil.which(program.command[0]) is None:
                print(f"SKIPPED: {program.command[0]} is not installed")
                continue
            wrong += run(name, program)
    print()
    if not ONLY or "rest" in ONLY:
        wrong += rest()
    if wrong:
        sys.exit("\n".join(wrong))


main()
