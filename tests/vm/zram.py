"""The kernel's own swap, to compare with: a memory cgroup whose pages go to a zram device. In guests only, as root: it loads modules, and all that swaps
on the machine would use the device."""

import contextlib
import os
import subprocess
from pathlib import Path

from images import fail
from modules import load

DEVICE_BYTES = 256 << 20
CGROUPS = Path("/sys/fs/cgroup")


def _said(path: str, word: str) -> None:
    try:
        Path(path).write_text(word)
    except OSError as error:
        fail(f"{path} does not take {word}: {error.strerror}")


def make(codec: str) -> None:
    """Makes a device that compresses with this."""
    load("zram")
    if not Path("/sys/block/zram0").exists():
        fail("this kernel has no zram")
    _said("/sys/block/zram0/comp_algorithm", codec)
    _said("/sys/block/zram0/disksize", str(DEVICE_BYTES))


@contextlib.contextmanager
def limited(bytes_: int):
    """A cgroup with so much memory, while the machine swaps to the device; what a command begins with to be started in it."""
    subprocess.run(["mkswap", "/dev/zram0"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run(["swapon", "/dev/zram0"], check=True)
    _said(f"{CGROUPS}/cgroup.subtree_control", "+memory")
    group = CGROUPS / f"zram-{os.getpid()}"
    group.mkdir()
    _said(f"{group}/memory.max", str(bytes_))
    try:
        yield ["sh", "-c", 'echo $$ > "$0" && exec "$@"', f"{group}/cgroup.procs"]
    finally:
        group.rmdir()
        subprocess.run(["swapoff", "/dev/zram0"], check=True)
