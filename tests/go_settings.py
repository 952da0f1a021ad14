"""One program in Go (tests/runtimes/go/settings.go) with the settings of its runtime, in each way in which it can be linked, by three versions of Go.

The versions are the machine's, the newest that its command fetches, and one of Debian's.
"""

from __future__ import annotations

import os
import re
import subprocess
from functools import partial

import lab
from made import GO, Command, Entry, go_built

OLDEST, NEWEST = "/usr/lib/go-1.19/bin/go", "1.27.3"
FILES = ["settings.go", "trees.go"]
IN_C = [*FILES, "c_stacks.go"]
STATICALLY = ["-ldflags", "-linkmode external -extldflags -static"]


def version() -> str:
    """Of this machine's Go, as in 1.26.8."""
    try:
        said = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=True, env={**os.environ, "GOTOOLCHAIN": "local"}).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    found = re.match(r"go([\d.]+)", said)
    return found.group(1) if found else said.strip()


def program(kind: str, files: list[str], *options: str, go: str = "go", toolchain: str = "local", of: str = "") -> Command:
    """`of`: the version, where that is not the machine's."""
    # Go's command takes another toolchain only where it looks for modules.
    environment = {"GOTOOLCHAIN": toolchain, "GO111MODULE": "on", "CGO_ENABLED": "1" if "c_stacks.go" in files else "0"}
    return [go_built(f"go-{of or version()}-settings-{kind}", files, *options, go=go, **environment)]


def library(name: str, mode: str, *files: str) -> str:
    environment = {"GOTOOLCHAIN": "local", "GO111MODULE": "on", "CGO_ENABLED": "1"}
    return go_built(f"go-{version()}-settings-{name}.so", list(files), f"-buildmode={mode}", **environment)


def static() -> Command:
    return program("static", FILES)


def with_plugin() -> Command:
    return ["env", f"PLUGIN={library('plugin', 'plugin', 'plugin.go', 'trees.go')}", *program("with-plugin", [*IN_C, "with_plugin.go"])]


def in_python() -> Command:
    path = library("shared", "c-shared", *FILES, "shared.go")
    return [str(lab.PYTHON), "-c", f"import ctypes; sum = ctypes.CDLL({path!r}).parts_of_go; sum.restype = ctypes.c_ulonglong; print('OK', sum())"]


def rows() -> list[Entry]:
    here = f"Go {version()}"
    settings = [
        "",
        "GOGC=25",
        "GOGC=400",
        "GOGC=100 GOMEMLIMIT=64MiB",
        "GOGC=off GOMEMLIMIT=160MiB",
        *(f"GOMAXPROCS={count}" for count in (1, 2, 4, 16)),
        "GODEBUG=asyncpreemptoff=1",
        "GODEBUG=madvdontneed=0",
    ]
    entries = [Entry(f"{here}, static{', ' * bool(line)}{line}", static, needs=GO, env=dict(word.split("=", 1) for word in line.split())) for line in settings]
    linked = {
        "position-independent, without C": lambda: program("pie", FILES, "-buildmode=pie"),
        "cgo": lambda: program("cgo", IN_C),
        "cgo, static": lambda: program("cgo-static", IN_C, *STATICALLY),
        "cgo, a plugin": with_plugin,
        "a library in Python": in_python,
        "-race": lambda: program("race", IN_C, "-race"),
    }
    entries += [Entry(f"{here}, {how}", command, needs=GO) for how, command in linked.items()]
    for of, go, toolchain, needs in ((NEWEST, "go", f"go{NEWEST}", GO), ("1.19.8", OLDEST, "local", ["golang-1.19-go"])):
        for kind, files in (("static", FILES), ("cgo", IN_C)):
            command = partial(program, kind, files, go=go, toolchain=toolchain, of=of)
            entries.append(Entry(f"Go {of}, {kind}", command, needs=needs))
    return entries
