"""The kernel's own swap, to compare with: a memory cgroup whose pages go to a zram device. In guests only, as root: it loads modules, and all that swaps
on the machine would use the device."""

import contextlib
import os
import re
import subprocess
import tempfile
from pathlib import Path

from images import QEMU, fail

UNPACKERS = {".xz": ["xz", "-dc"], ".zst": ["zstd", "-dc"], ".gz": ["gzip", "-dc"]}
DEVICE_BYTES = 256 << 20
CGROUPS = Path("/sys/fs/cgroup")


def _said(path: str, word: str) -> None:
    try:
        Path(path).write_text(word)
    except OSError as error:
        fail(f"{path} does not take {word}: {error.strerror}")


def load(module: str) -> None:
    """Loads a module of the running kernel, and before it those that it says it needs. (There is no list of these here, which modprobe would take.)"""
    name = module.replace("-", "_")
    if Path("/sys/module", name).exists():
        return
    folder = Path("/lib/modules", os.uname().release)
    found = next((path for path in folder.rglob("*.ko*") if path.name.split(".")[0].replace("-", "_") == name), None)
    if found is None:
        # Built in, or there is none: whatever needs it says so.
        return
    content = subprocess.run([*UNPACKERS.get(found.suffix, ["cat"]), found], stdout=subprocess.PIPE, check=True).stdout
    needed = re.search(rb"\0depends=([^\0]*)\0", content)
    for other in filter(None, needed[1].decode().split(",") if needed else []):
        load(other)
    with tempfile.NamedTemporaryFile(suffix=".ko") as file:
        file.write(content)
        file.flush()
        subprocess.run([QEMU / "bin/busybox", "insmod", file.name], check=True)


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
