"""Modules of the kernel that runs: in guests only, as root."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

from images import QEMU

UNPACKERS = {".xz": ["xz", "-dc"], ".zst": ["zstd", "-dc"], ".gz": ["gzip", "-dc"]}


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
