#!/usr/bin/env python3
"""Each place in the code inside programs where a thread waits is in tests/waits.txt, with what ends the wait."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST = ROOT / "tests/waits.txt"
# Model checks have waits of their own.
LEFT_OUT = re.compile(r"/sync/model|/lab/|models\.rs|tests?\.rs")
WAIT = re.compile(r"\bfutex::wait\(|\bnanosleep\(|\bsched_yield\(|\bspin_loop\(|\bpause\(\)|\brest\(\)|\bwait_while\(|\bpoll\(|__NR_epoll_pwait|\bnap\(\)")
FUNCTION = re.compile(r"\bfn (\w+)")


def waits():
    """The functions that wait, as `crate/file.rs::function`."""
    found = {}
    for crate in ("agent", "pager", "wire", "sys", "core"):
        source = ROOT / f"crates/lowtide-{crate}/src"
        for path in sorted(source.rglob("*.rs")):
            if LEFT_OUT.search(str(path)):
                continue
            function = None
            for line in path.read_text().splitlines():
                code = line.split("//")[0]
                if re.match(r"(pub(\(crate\))? )?mod (tests|models) \{", line):
                    break
                if match := FUNCTION.search(code):
                    function = match[1]
                if WAIT.search(code) and not FUNCTION.search(code) and function:
                    found.setdefault(f"{crate}/{path.relative_to(source)}::{function}", path)
    return found


def main():
    listed = {}
    for line in LIST.read_text().splitlines():
        if line and not line.startswith("#"):
            place, _, reason = line.partition(": ")
            listed[place] = reason.strip()
    found = waits()
    faults = [f"{place}: waits, and tests/waits.txt does not say what ends that" for place in found if not listed.get(place)]
    faults += [f"{place}: does not wait any more; tests/waits.txt says that it does" for place in listed if place not in found]
    print("\n".join(faults) or f"{len(found)} functions that wait, each with its end")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
