"""What `fetch` has unpacked under target/vm, and how `vm` finds it: QEMU, and one folder for each kernel."""

import os
import re
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
HOME = TARGET / "vm"
KERNELS = HOME / "kernels"
QEMU = HOME / "qemu"
GUEST = Path(__file__).resolve().parent / "guest"


def fail(why: str) -> NoReturn:
    """What can't be done is one line, and status 2."""
    print(f"{Path(sys.argv[0]).name}: {why}", file=sys.stderr)
    sys.exit(2)


def number(name: str, otherwise: int, most: int) -> int:
    """An environment variable."""
    text = os.environ.get(name, str(otherwise))
    if not text.isdigit() or not 1 <= int(text) <= most:
        fail(f"{name}={text}: 1 to {most}")
    return int(text)


def order(version: str) -> list[int]:
    """Sorts versions as people read them.

    >>> sorted(["6.12.117+deb13", "6.12.43+deb12", "6.9.1"], key=order)
    ['6.9.1', '6.12.43+deb12', '6.12.117+deb13']
    """
    return [int(part) for part in re.findall(r"\d+", version)]


def matching(wanted: str, versions: list[str]) -> str | None:
    """The newest version that begins with these numbers.

    >>> all = ["6.12.43+deb12", "6.12.117+deb13", "6.1.0"]
    >>> matching("6.12", all), matching("6.12.43", all), matching("6.12.4", all), matching("6.1", all)
    ('6.12.117+deb13', '6.12.43+deb12', None, '6.1.0')
    """
    parts = order(wanted)
    if not re.fullmatch(r"[0-9][0-9a-z.+]*", wanted):
        return None
    return max((version for version in versions if order(version)[: len(parts)] == parts), key=order, default=None)


def kernels() -> list[str]:
    """The versions that are here, oldest first."""
    return sorted((folder.name for folder in KERNELS.glob("*") if (folder / "vmlinux").exists()), key=order)
