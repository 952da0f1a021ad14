"""Runs a program natively or under lowtide and measures it from outside; shared by the demonstration and the tables.

What is counted is what the limit is for: the resident anonymous pages of every process of the run (forked copies that have not
called exec are left out: their pages are their parent's), lowtide's own process and the memory it shares with its agents.
Where copies count as well, a memory cgroup of the kernel's counts them (as root): at one moment, while a sum over
processes, each page divided by how many have it, takes up to half a second, in which pages move from one to the other. (What a
fork of a program without hooks brings in for the child is missing there.)
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
RESULTS = ROOT / "bench/results"
LOWTIDE = TARGET / "release/lowtide"
# What is measured in guests, where a release build need not be awaited.
MEASURED = TARGET / "quick/lowtide" if os.environ.get("LOWTIDE_QUICK") else LOWTIDE
PYTHON = TARGET / "venv/bin/python"
MIB = 1 << 20
FORKED_WITHOUT_EXEC = 0x40
DEADLINE_SECONDS = 300
# A process that has so much when it is forked is a large one; for so long after that, what is measured is kept apart.
LARGE = 16 * MIB
SETTLING_SECONDS = 0.1
SIGTERM_SECONDS = 5

# Ended from outside, a script still ends what it started.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


@dataclass
class Result:
    status: int
    stdout: str
    stderr: str
    seconds: float
    peak: int
    # With copies: the highest sample of those that are not from the first 100 ms after a large process forked; `samples` are those, else all.
    settled_peak: int = 0
    # The same of the cgroup, and its highest sample of all; None: there is none.
    group_settled_peak: int | None = None
    group_peak: int | None = None
    samples: int = 0
    group_samples: int = 0
    stats: dict = field(default_factory=dict)
    # Empty, or the signal that ended a run that took too long.
    ended_by: str = ""


def _stat(pid: str) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None


def _session(leader: int, copies: bool = False) -> list[str]:
    """The processes of the run, without forked copies of a counted one. With copies: those too, and all that descend from them, wherever
    they have gone since (servers give each of their processes a session of its own)."""
    fields = {pid: stat for pid in filter(str.isdigit, os.listdir("/proc")) if (stat := _stat(pid))}
    session = [pid for pid in fields if int(fields[pid][3]) == leader]
    if not copies:
        return [pid for pid in session if not int(fields[pid][6]) & FORKED_WITHOUT_EXEC]
    family = {str(leader), *session}
    while more := {pid for pid in fields if fields[pid][1] in family} - family:
        family |= more
    return [pid for pid in family if pid in fields]


def _anonymous(pid: str) -> int:
    try:
        _, resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[:3]
    except (OSError, ValueError):
        return 0
    return max(0, int(resident) - int(shared)) * 4096


def _share(pid: str) -> int:
    """Its anonymous memory; of what it shares with forked copies, its part. Slow: the kernel looks at every page."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss_Anon:"))


def _memfds(pid: int) -> int:
    total = 0
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            if os.readlink(entry.path).startswith("/memfd:"):
                total += os.stat(entry.path).st_blocks * 512
    except OSError:
        pass
    return total


class _Group:
    """A memory cgroup for one run, which limits nothing; of version 1, or of version 2 where that has the memory controller."""

    ROOT = Path("/sys/fs/cgroup")
    FIRST = ROOT / "memory"

    def __init__(self):
        first = (self.FIRST / "memory.stat").exists()
        self.path = (self.FIRST if first else self.ROOT) / f"lowtide-lab-{os.getpid()}"
        self.anonymous = "rss" if first else "anon"
        self.path.mkdir()

    @staticmethod
    def possible() -> bool:
        if os.geteuid() != 0 or (_Group.FIRST / "memory.stat").exists():
            return os.geteuid() == 0
        control = _Group.ROOT / "cgroup.subtree_control"
        with contextlib.suppress(OSError):
            control.write_text("+memory")
            return "memory" in control.read_text().split()
        return False

    def started_in(self, command: list[str]) -> list[str]:
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.path / "cgroup.procs"), *command]

    def size(self) -> int:
        """Anonymous memory, and files in memory only: lowtide shares such with its agents."""
        fields = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        return int(fields[self.anonymous]) + int(fields["shmem"])

    def remove(self) -> None:
        for _ in range(100):
            with contextlib.suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.05)


class _Sampler(threading.Thread):
    def __init__(self, leader: int, limited: bool, copies: bool, group: _Group | None = None):
        super().__init__(daemon=True)
        self.group = group
        self.leader, self.limited, self.copies, self.peak, self.stop = leader, limited, copies, 0, threading.Event()
        self.settled_peak, self.samples = 0, 0
        self.pause = 0.01
        self.known, self.last_fork = set(), 0.0

    def _look(self) -> list[str]:
        """The processes as they are now; notes forks of large ones."""
        processes = _session(self.leader, copies=True)
        if any(_anonymous(pid) >= LARGE for pid in set(processes) - self.known):
            self.last_fork = time.monotonic()
        self.known = set(processes)
        return processes

    def _sample_copies(self) -> None:
        while not self.stop.wait(self.pause):
            processes = self._look()
            settled, fork = time.monotonic() - self.last_fork > SETTLING_SECONDS, self.last_fork
            if self.group:
                size = self.group.size()
            else:
                size = (_memfds(self.leader) if self.limited else 0) + sum(map(_share, processes))
            self.peak = max(self.peak, size)
            # Of a sum that a fork came between, a page may be in it twice.
            self._look()
            if settled and self.last_fork == fork:
                self.settled_peak, self.samples = max(self.settled_peak, size), self.samples + 1

    def run(self) -> None:
        if self.copies:
            self._sample_copies()
            return
        count, shared, processes = 0, 0, []
        while not self.stop.wait(0.004):
            if count % 5 == 0 or len(processes) < 2:
                processes = _session(self.leader)
                shared = _memfds(self.leader) if self.limited else 0
            count += 1
            self.samples = count
            self.peak = max(self.peak, shared + sum(map(_anonymous, processes)))


def _ends(child: subprocess.Popen, seconds: float) -> bool:
    """Whether a process ends within so many seconds, known at once. (With a timeout Python looks every 50 ms.)"""
    pidfd = os.pidfd_open(child.pid)
    try:
        return bool(select.select([pidfd], [], [], seconds)[0])
    finally:
        os.close(pidfd)


def _end(child: subprocess.Popen) -> str:
    """Ends a run as a user would, and then as one who is tired of it; which signal it took."""
    family = _session(child.pid, copies=True)
    child.terminate()
    try:
        child.wait(SIGTERM_SECONDS)
        return "SIGTERM"
    except subprocess.TimeoutExpired:
        return "SIGKILL"
    finally:
        child.kill()
        child.wait()
        for pid in set(_session(child.pid, copies=True)) & set(family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def run(
    command: list[str],
    ram: int | None = None,
    options: list[str] | None = None,
    sample: bool = True,
    env: dict | None = None,
    deadline: float | None = None,
    copies: bool = False,
) -> Result:
    """Runs `command`; with `ram`, under lowtide with that limit. Without `sample` nothing disturbs the timing. A run that takes longer
    than `deadline` is ended, and its result says how; without one, that ends this script. With `copies`, forked copies are measured
    as well, as exactly as the kernel knows it and not as often: for programs that do their work in them."""
    with tempfile.TemporaryDirectory() as directory:
        stats = Path(directory, "stats.json")
        if ram is not None:
            command = [str(LOWTIDE), "run", "--ram", str(ram), "--stats", str(stats), *(options or []), "--", *command]
        out, err = open(Path(directory, "out"), "w+b"), open(Path(directory, "err"), "w+b")
        with out, err:
            group = _Group() if copies and sample and _Group.possible() else None
            if group:
                command = group.started_in(command)
            start = time.monotonic()
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, env={**os.environ, "LC_ALL": "C", **(env or {})}
            )
            sampler = _Sampler(child.pid, ram is not None, copies)
            samplers = [sampler] if sample else []
            if group:
                # It holds up those that map memory: where there is another one, now and then is enough.
                sampler.pause = 0.1
                samplers.append(_Sampler(child.pid, ram is not None, copies, group))
            for each in samplers:
                each.start()
            ended_by = ""
            try:
                if not _ends(child, deadline or DEADLINE_SECONDS):
                    if deadline is None:
                        sys.exit(f"no end after {DEADLINE_SECONDS} s: {' '.join(command)}")
                    ended_by = _end(child)
                seconds = time.monotonic() - start
                status = child.wait()
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
            for each in samplers:
                each.stop.set()
                each.join()
            if group:
                group.remove()
            out.seek(0)
            err.seek(0)
            text, errors = out.read().decode(errors="replace"), err.read().decode(errors="replace")
        found = json.loads(stats.read_text()) if stats.exists() else {}
        status = status if status >= 0 else 128 - status
        result = Result(status, text, errors, seconds, sampler.peak, sampler.settled_peak, samples=sampler.samples, stats=found, ended_by=ended_by)
        if group:
            result.group_settled_peak, result.group_peak, result.group_samples = samplers[1].settled_peak, samplers[1].peak, samplers[1].samples
        return result


def mib(size: float) -> str:
    return f"{size / MIB:,.0f} MiB"


def machine() -> str:
    """Where a result is measured, and how busy it is."""
    return f"{os.cpu_count()} CPUs, Linux {platform.release().split('-')[0]}, {platform.machine()}; load average before: {os.getloadavg()[0]:.1f}"


class Page:
    """What `make NAME` prints, and its page bench/results/NAME.md: the command, with those of the `settings` (environment variables) that are set, the
    machine, and all that was printed. `plain`: that is no Markdown."""

    def __init__(self, name: str, *settings: str, plain: bool = False) -> None:
        words = [f"{setting}={shlex.quote(os.environ[setting])}" for setting in settings if os.environ.get(setting)]
        self.path = RESULTS / f"{name}.md"
        self.head = f"# `{' '.join([*words, 'make', name])}`\n\nMachine: {machine()}\n\n"
        self.fence = "```\n" if plain else ""
        self.lines: list[str] = []

    def print(self, text: str) -> None:
        print(text, flush=True)
        self.lines.append(text + "\n")

    def write(self) -> None:
        self.path.write_text("".join([self.head, self.fence, *self.lines, self.fence]))


def compiled(name: str) -> str:
    """A test program, compiled as the tests do."""
    output, source = TARGET / "lab" / name, ROOT / f"tests/programs/{name}.c"
    output.parent.mkdir(parents=True, exist_ok=True)
    if not output.exists() or output.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["cc", "-O2", "-std=gnu11", "-pthread", "-o", output, source], check=True)
    return str(output)


def require_lowtide() -> None:
    if not LOWTIDE.exists():
        sys.exit(f"{LOWTIDE} is missing: make build")
