"""make watching: what --report and --metrics cost the run.

Runs without, with --report, and with --metrics that is read each second, in turn. Wake-ups (voluntary context switches) and CPU time are those
of `lowtide run` and its threads alone, from /proc just before the end; the time is that of the program's run.
"""

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import lab

ROUNDS = int(os.environ.get("WATCHING_ROUNDS", "5"))
KINDS = ["nothing", "--report", "--metrics"]
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def cost(pid: int) -> tuple[float, int, int]:
    """CPU seconds, wake-ups and anonymous bytes of a process, all its threads together."""
    cpu, wakeups = 0.0, 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        # The first figure of schedstat: nanoseconds on a CPU.
        cpu += int((task / "schedstat").read_text().split()[0]) / 1e9
        status = (task / "status").read_text()
        wakeups += int(status.split("voluntary_ctxt_switches:")[1].split()[0])
    status = Path(f"/proc/{pid}/status").read_text()
    memory = int(status.split("RssAnon:")[1].split()[0]) * 1024
    return cpu, wakeups, memory


def run(kind: str, directory: Path) -> tuple[float, float, float, int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = {"nothing": [], "--report": ["--report", str(directory / "r.html")], "--metrics": ["--metrics", address]}[kind]
    command = [lab.compiled("touches"), "192", "400000", "random", "t"]
    ended = threading.Event()

    def read() -> None:
        while not ended.wait(1):
            try:
                OPENER.open(f"http://{address}/metrics", timeout=5).read()
            except OSError:
                pass

    start = time.monotonic()
    child = subprocess.Popen(
        [lab.LOWTIDE, "run", "--quiet", "--ram", "128M", "--swap", "ram", *options, "--", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    if kind == "--metrics":
        threading.Thread(target=read, daemon=True).start()
    last = (0.0, 0, 0)
    while child.poll() is None:
        try:
            last = cost(child.pid)
        except (OSError, IndexError, ValueError):
            pass
        time.sleep(0.05)
    seconds = time.monotonic() - start
    ended.set()
    return seconds, last[0] / seconds, last[1] / seconds, last[2]


def main() -> int:
    lab.require_lowtide()
    found: dict[str, list] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        for number in range(ROUNDS):
            for kind in KINDS if number % 2 == 0 else reversed(KINDS):
                found[kind].append(run(kind, Path(directory)))
    print(f"medians of {ROUNDS} rounds, in turn")
    print(f"  {'':<10} {'time':>8} {'CPU of lowtide run':>20} {'wake-ups a second':>18} {'memory':>10}")
    shares = {}
    for kind in KINDS:
        seconds, cpu, wakeups, memory = (statistics.median(values) for values in zip(*found[kind]))
        shares[kind] = cpu
        print(f"  {kind:<10} {seconds:>6.2f} s {cpu:>18.3%} {wakeups:>16.1f}/s {memory / 1024:>6.0f} KiB")
    worst = max(shares[kind] - shares["nothing"] for kind in KINDS)
    print(f"they add {worst:.3%} of a CPU at most (the promise: below 1 %)")
    return int(worst >= 0.01)


sys.exit(main())
