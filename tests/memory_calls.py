"""make links: docs/design/events.md has a row for every way to change a process's private memory.

Goes through the system calls of x86-64, the advice of madvise, and the operations of userfaultfd and io_uring, as the kernel's
headers here name them, and what newer kernels have. Each is in the table or in a list below. Prints what is missing, and names of
tests that are not there, and exits with 1.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADERS = [Path("/usr/include"), Path("/usr/include/x86_64-linux-gnu")]
# Newer than some headers.
NEWER = "cachestat map_shadow_stack mseal statmount listmount futex_wait futex_wake futex_requeue lsm_get_self_attr setxattrat"
NEWER_ADVICE = "MADV_GUARD_INSTALL MADV_GUARD_REMOVE MADV_COLLAPSE MADV_DONTNEED_LOCKED"
# What changes no mapping, drops and moves no page, and writes to memory only as a program may write to it.
HARMLESS_ADVICE = "NORMAL RANDOM SEQUENTIAL DONTDUMP DODUMP"
HARMLESS_UFFD = "API WAKE COPY ZEROPAGE WRITEPROTECT CONTINUE POISON IOC_NEW"


def named(header: str, pattern: str) -> set[str]:
    paths = [root / header for root in HEADERS if (root / header).exists()]
    return {name for path in paths for name in re.findall(pattern, path.read_text())}


def table() -> tuple[str, list[str]]:
    """All columns of the tables but the last, and the tests that the last one names."""
    text = (ROOT / "docs/design/events.md").read_text().split("## Every way to change memory")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")][1:]
    tests = [name for row in rows for name in re.findall(r"`(\w+)`", row[-1])]
    return "\n".join(" ".join(row[:-1]) for row in rows), tests


def main() -> int:
    text, tests = table()
    wrong = []
    words = set(re.findall(r"\w+", text))
    calls = named("asm/unistd_64.h", r"__NR_(\w+)") | set(NEWER.split())
    known = set((ROOT / "tests/harmless_calls.txt").read_text().split())
    wrong += [f"system call {call}: neither in the table nor in harmless_calls.txt" for call in sorted(calls - words - known)]
    wrong += [f"system call {call}: in the table and in harmless_calls.txt" for call in sorted(known & set(re.findall(r"`(\w+)`", text)))]
    advice = named("asm-generic/mman-common.h", r"#define (MADV_\w+)") | set(NEWER_ADVICE.split())
    wrong += [f"advice {name}" for name in sorted(advice - words - {f"MADV_{name}" for name in HARMLESS_ADVICE.split()})]
    uffd = named("linux/userfaultfd.h", r"#define (UFFDIO_[A-Z]+)\s+_IO") | {"UFFDIO_MOVE"}
    wrong += [f"userfaultfd's {name}" for name in sorted(uffd - words - {f"UFFDIO_{name}" for name in HARMLESS_UFFD.split()})]
    rings = {name for name in named("linux/io_uring.h", r"(IORING_OP_\w+)") if "MADVISE" in name}
    wrong += [f"io_uring's {name}" for name in sorted(rings - words)]
    sources = "".join(path.read_text() for path in (ROOT / "crates").rglob("*.rs"))
    programs = {path.stem for path in (ROOT / "tests/programs").iterdir()}
    wrong += [f"no test {name}" for name in tests if f"fn {name}(" not in sources and name not in programs]
    for line in wrong:
        print(f"docs/design/events.md: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
