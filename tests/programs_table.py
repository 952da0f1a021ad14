"""make programs: programs that nobody here wrote, natively and in 60 % of the memory that they then took: docs/programs.md.

Each does a job that prints a checksum over all that it keeps (tests/runtimes, tests/programs). Packages that are missing are installed;
what can't be had is skipped, and the table says so. `--only NAME` (repeatable; the beginning of the name will do) runs some and writes nothing.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import lab

PERCENT = 60
JOBS = lab.ROOT / "tests/runtimes"
BUILT = lab.TARGET / "lab/runtimes"
PAGE = lab.ROOT / "docs/programs.md"
# What the page says before the table.
HEAD = lab.ROOT / "tests/programs-head.md"
# A run under lowtide may take so many times as long as natively, and so many seconds more.
LONGEST_RATIO, LONGEST_MORE = 20, 20
# Right, but that much slower, is called slow.
SLOW_RATIO = 10
# What the tests allow programs that map a stream of new memory.
PEAK_RATIO, PEAK_MORE = 1.15, 32 * lab.MIB
REFUSALS = (125, 126, 127)
LEAST_RAM = 16 * lab.MIB

EXECUTABLE = "its heap is mapped executable, and such memory is not paged"
RANDOM = "it jumps about in its objects while it makes them: hash tables of strings, a fault for each page, few that read-ahead could guess"
SHARED = "its heap is shared memory (a memfd), which is neither paged nor counted: the limit is for the rest"

Command = list[str]


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


def rust_program() -> str:
    return built("rust-job", ["rustc", "-O", "-o", "OUT", job("job.rs")], job("job.rs"))


def go_program(suffix: str, *files: str) -> str:
    sources = [job(f"go/{file}") for file in files]
    return built(f"go-{suffix}", ["env", "GO111MODULE=off", "go", "build", "-o", "OUT", *sources], *sources)


def haskell_program() -> str:
    return built("haskell-job", ["ghc", "-O", "-v0", "-outputdir", str(BUILT / "hs"), "-o", "OUT", job("job.hs")], job("job.hs"))


def ocaml_program() -> str:
    source = BUILT / "ocaml_job.ml"
    BUILT.mkdir(parents=True, exist_ok=True)
    shutil.copy(job("job.ml"), source)
    return built("ocaml-job", ["ocamlopt", "-o", "OUT", str(source)], job("job.ml"))


def java_class() -> str:
    built("Job.class", ["javac", "-d", str(BUILT), job("Job.java")], job("Job.java"))
    return str(BUILT)


def erlang_module() -> str:
    built("job.beam", ["erlc", "-o", str(BUILT), job("job.erl")], job("job.erl"))
    return str(BUILT)


def prolog() -> Command:
    return ["swipl", "--stack-limit=2g", job("job.prolog")]


def duckdb() -> Command:
    if subprocess.run([lab.PYTHON, "-c", "import duckdb"], capture_output=True, check=False).returncode != 0:
        subprocess.run([lab.PYTHON, "-m", "pip", "install", "-q", "--disable-pip-version-check", "duckdb"], check=True)
    return [str(lab.PYTHON), job("duckdb_job.py")]


def preloaded(library: str, *command: str) -> Command:
    return ["env", f"LD_PRELOAD={library}", *command]


def directory(name: str) -> str:
    return str(Path(tempfile.gettempdir(), f"lowtide-programs-{name}"))


def chromium(more: str = "") -> Command:
    profile = directory("chromium")
    page = f"file://{job('page.html')}"
    flags = f"--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-extensions --no-first-run --virtual-time-budget=100000 {more}"
    script = f"trap 'rm -rf {profile}' EXIT; rm -rf {profile}; chromium {flags} --user-data-dir={profile} --dump-dom {page} 2>/dev/null | grep -o 'OK [^<]*'"
    return ["sh", "-c", script]


def busybox_sort() -> Command:
    lines = BUILT / "lines"
    if not lines.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        lines.write_text("".join(f"{i * 2654435761 % 4294967291:010} a line of a log, number {i}\n" for i in range(1_000_000)))
    return ["sh", "-c", f"/bin/busybox sort {lines} | md5sum"]


def from_npm(name: str, *packages: str) -> Path:
    """A folder with packages that npm has, those for other kinds of machines included."""
    folder = BUILT / name
    if not (folder / "node_modules").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}\n')
        subprocess.run(["npm", "install", "--silent", "--force", *packages], cwd=folder, check=True)
    return folder


def esbuild() -> Command:
    """Bundles the same library under nine names, with a map of it."""
    package = from_npm("esbuild", "esbuild@0.28", "three@0.180")
    names = "".join(f"export * as t{i} from './node_modules/three/build/three.module.js?{i}';\n" for i in range(9))
    (package / "in.js").write_text(names)
    program = "node_modules/@esbuild/linux-x64/bin/esbuild"
    return ["sh", "-c", f"cd {package} && {program} in.js --bundle --minify --sourcemap=inline --log-level=error | md5sum"]


def tsgo() -> Command:
    """The TypeScript compiler in Go: checks the types of a library with all declarations that they use."""
    package = from_npm("tsgo", "@typescript/native-preview-linux-x64@7.0.0-dev.20260707.2", "three@0.180", "@types/three@0.180", "@types/node@24")
    options = '"noEmit": true, "lib": ["es2022", "dom"], "module": "esnext", "moduleResolution": "bundler", "types": ["node"], "strict": true'
    (package / "tsconfig.json").write_text(f'{{"compilerOptions": {{{options}}}, "files": ["in.ts"]}}\n')
    (package / "in.ts").write_text('import * as THREE from "three";\nimport * as W from "three/webgpu";\nconsole.log(W, new THREE.Scene());\n')
    return ["sh", "-c", f"cd {package} && node_modules/@typescript/native-preview-linux-x64/lib/tsgo -p . | md5sum"]


def biome() -> Command:
    package = from_npm("biome", "@biomejs/cli-linux-x64-musl@2.6", "three@0.180")
    program = "node_modules/@biomejs/cli-linux-x64-musl/biome format --files-max-size=99999999 --stdin-file-path=in.js"
    return ["sh", "-c", f"cd {package} && {program} <node_modules/three/build/three.webgpu.js | md5sum"]


def pagefind() -> Command:
    """Makes an index of a site."""
    package = from_npm("pagefind", "@pagefind/linux-x64@1.6")
    site = package / "site"
    if not site.exists():
        site.mkdir()
        for page in range(500):
            words = " ".join(f"word{(page * 600 + i) * 2654435761 % 20011}" for i in range(600))
            (site / f"{page}.html").write_text(f"<html><body><main><h1>Page {page}</h1><p>{words}</p></main></body></html>\n")
    program = "node_modules/@pagefind/linux-x64/bin/pagefind_extended --silent --site site --output-path out"
    return ["sh", "-c", f"cd {package} && rm -rf out && {program} && find out -type f | sort | xargs cat | md5sum"]


def restic() -> Command:
    """Backs up the Python library twice, and reads all of it again."""
    program = BUILT / "bin/restic"
    if not program.exists():
        environment = {**os.environ, "GOBIN": str(program.parent), "CGO_ENABLED": "0"}
        subprocess.run(["go", "install", "github.com/restic/restic/cmd/restic@v0.18.0"], env=environment, check=True)
    place = directory("restic")
    lines = [f"rm -rf {place}", "export RESTIC_PASSWORD=x", f"r() {{ {program} --quiet --no-cache -r {place} \"$@\"; }}"]
    lines += ["r init", "r backup /usr/lib/python3", "r backup /usr/lib/python3", "r check --read-data", "echo $?", f"rm -rf {place}"]
    return ["sh", "-c", "\n".join(lines)]


def bun() -> Command:
    return [str(from_npm("bun", "@oven/bun-linux-x64@1.4") / "node_modules/@oven/bun-linux-x64/bin/bun"), job("job.js")]


def deno() -> Command:
    return [str(from_npm("deno", "@deno/linux-x64-glibc@2.9") / "node_modules/@deno/linux-x64-glibc/deno"), "run", "-A", job("job.js")]


def small_mallocs() -> Command:
    return [c_program("small_mallocs", "plain"), "2000000"]


NPM = [] if shutil.which("npm") else ["npm"]


@dataclass
class Entry:
    name: str
    command: Callable[[], Command]
    packages: list[str] = field(default_factory=list)
    # Why it is as it is, where it isn't right; the page has it beside the outcome.
    why: str = ""
    env: dict = field(default_factory=dict)
    # It works in forked copies of itself.
    copies: bool = False


ENTRIES = [
    # Lisps, functional and logic languages.
    Entry("SBCL", lambda: ["sbcl", "--dynamic-space-size", "1GB", "--script", job("job.lisp")], ["sbcl"], why=EXECUTABLE),
    Entry("ECL", lambda: ["ecl", "--shell", job("job.lisp")], ["ecl"]),
    Entry("Guile", lambda: ["guile", "--no-auto-compile", job("job.scm")], ["guile-3.0"]),
    Entry("Chez Scheme", lambda: ["chezscheme", "--script", job("job.scm")], ["chezscheme"], why=EXECUTABLE),
    Entry("GHC Haskell", lambda: [haskell_program()], ["ghc"]),
    Entry("OCaml", lambda: [ocaml_program()], ["ocaml-nox"]),
    Entry("Poly/ML", lambda: ["poly", "--script", job("job.sml")], ["polyml"]),
    Entry("Erlang", lambda: ["erl", "-noshell", "-pa", erlang_module(), "-s", "job", "main"], ["erlang-base"]),
    Entry("SWI-Prolog", prolog, ["swi-prolog-nox"]),
    # Virtual machines and scripting languages.
    Entry("OpenJDK, G1", lambda: ["java", "-Xmx512m", "-XX:+UseG1GC", "-cp", java_class(), "Job"], ["default-jdk-headless"]),
    Entry("OpenJDK, serial", lambda: ["java", "-Xmx512m", "-XX:+UseSerialGC", "-cp", java_class(), "Job"], ["default-jdk-headless"]),
    Entry("OpenJDK, ZGC", lambda: ["java", "-Xmx512m", "-XX:+UseZGC", "-cp", java_class(), "Job"], ["default-jdk-headless"], why=SHARED),
    Entry("Mono", lambda: ["mono", built("Job.exe", ["mcs", "-out:OUT", job("Job.cs")], job("Job.cs"))], ["mono-runtime", "mono-mcs"]),
    Entry("node", lambda: ["node", job("job.js")], [] if shutil.which("node") else ["nodejs"]),
    Entry("Chromium --no-zygote", lambda: chromium("--no-zygote"), ["chromium"], copies=True),
    Entry(
        "Chromium",
        chromium,
        ["chromium"],
        why="its zygote ends itself if its process has more than one thread, and lowtide has one in each: start it with --no-zygote",
        copies=True,
    ),
    Entry("Perl", lambda: ["perl", job("job.pl")], ["perl"], why=RANDOM, env={"PERL_HASH_SEED": "0"}),
    Entry("Ruby", lambda: ["ruby", job("job.rb")], ["ruby"]),
    Entry("PHP", lambda: ["php", job("job.php")], ["php-cli"]),
    Entry("Lua", lambda: ["lua5.4", job("job.lua")], ["lua5.4"]),
    Entry("LuaJIT", lambda: ["luajit", job("job.lua")], ["luajit"], why=RANDOM),
    Entry("R", lambda: ["Rscript", "--vanilla", job("job.R")], ["r-base-core"]),
    Entry("Octave", lambda: ["octave-cli", "--no-gui", "--norc", "--quiet", job("job.m")], ["octave"]),
    # Compiled.
    Entry("Rust", lambda: [rust_program()], [] if shutil.which("rustc") else ["rustc"]),
    Entry("Go, linked dynamically (cgo)", lambda: [go_program("cgo", "job.go", "with_c.go")], [] if shutil.which("go") else ["golang-go"]),
    Entry("Go, four threads and the collector", lambda: [go_program("collector", "collector.go", "with_c.go")], [] if shutil.which("go") else ["golang-go"]),
    Entry("Go, linked statically", lambda: [go_program("static", "job.go")], [] if shutil.which("go") else ["golang-go"]),
    # Databases.
    Entry("PostgreSQL, as another user", lambda: ["sh", job("postgres.sh"), directory("postgres")], ["postgresql"], copies=True),
    Entry("MariaDB", lambda: ["sh", job("mariadb.sh"), directory("mariadb")], ["mariadb-server"]),
    Entry("SQLite", lambda: ["sqlite3", ":memory:", f".read {job('job.sql')}"], ["sqlite3"]),
    Entry("DuckDB", duckdb),
    # Other allocators.
    Entry("jemalloc, preloaded", lambda: preloaded("libjemalloc.so.2", *small_mallocs()), ["libjemalloc2"]),
    Entry("tcmalloc, preloaded", lambda: preloaded("libtcmalloc_minimal.so.4", *small_mallocs()), ["libtcmalloc-minimal4"]),
    Entry("mimalloc, preloaded", lambda: preloaded("libmimalloc.so.2", *small_mallocs()), ["libmimalloc2.0"]),
    Entry("jemalloc, Ruby", lambda: preloaded("libjemalloc.so.2", "ruby", job("job.rb")), ["libjemalloc2", "ruby"]),
    # Programs that do strange things with memory.
    Entry("C, its own userfaultfd from the start", lambda: [c_program("own_userfaultfd", "plain"), "early", "160"]),
    Entry("C, its own userfaultfd later", lambda: [c_program("own_userfaultfd", "plain"), "late", "160"]),
    Entry("C, MAP_GROWSDOWN stacks", lambda: [c_program("grows_down", "plain"), "24", "96"]),
    Entry("C, 32-bit", lambda: [c_program("small_mallocs", "32", "-m32"), "1000000"], ["gcc-multilib"]),
    Entry("C, static", lambda: [c_program("small_mallocs", "static", "-static"), "2000000"]),
    Entry("C, musl", lambda: [c_program("small_mallocs", "musl", compiler="musl-gcc"), "2000000"], ["musl-tools"]),
    Entry("C, musl, static", lambda: [c_program("small_mallocs", "musl-static", "-static", compiler="musl-gcc"), "2000000"], ["musl-tools"]),
    # Static programs that others wrote.
    Entry("busybox sort, static", busybox_sort, ["busybox-static"]),
    Entry("esbuild (Go, static), three.js nine times", esbuild, NPM),
    Entry("tsgo (Go, static), types of three.js", tsgo, NPM),
    Entry("Biome (Rust, musl, static), formats three.js", biome, NPM),
    Entry("Pagefind (Rust, musl, static), 500 pages", pagefind, NPM),
    Entry("restic (Go, static), backups and check", restic),
    # Programs that bring their own memory with them.
    Entry("Bun", bun, NPM),
    Entry("Deno", deno, NPM),
    # Sanitizers and tools.
    Entry("gcc AddressSanitizer", lambda: [c_program("small_mallocs", "asan", "-fsanitize=address"), "600000"]),
    Entry("gcc ThreadSanitizer", lambda: [c_program("small_mallocs", "tsan", "-fsanitize=thread"), "600000"]),
    Entry("gcc UBSan", lambda: [c_program("small_mallocs", "ubsan", "-fsanitize=undefined"), "2000000"]),
    Entry(
        "clang AddressSanitizer",
        lambda: [c_program("small_mallocs", "clang-asan", "-fsanitize=address", compiler="clang"), "600000"],
        ["clang", "libclang-rt-14-dev"],
    ),
    Entry(
        "clang MemorySanitizer",
        lambda: [c_program("small_mallocs", "clang-msan", "-fsanitize=memory", compiler="clang"), "600000"],
        ["clang", "libclang-rt-14-dev"],
    ),
    Entry(
        "AddressSanitizer, in a child",
        lambda: ["sh", "-c", f"{c_program('small_mallocs', 'asan', '-fsanitize=address')} 600000; echo $?"],
    ),
    Entry("valgrind", lambda: ["valgrind", "-q", c_program("small_mallocs", "plain"), "100000"], ["valgrind", "libc6-dbg"]),
    Entry(
        "gdb, running a program",
        # Without what it says of threads: lowtide's are news to it.
        lambda: ["sh", "-c", "gdb -q -nx -batch -ex 'break printf' -ex run -ex finish -ex continue --args \"$@\" | grep -a '^OK'", "sh", *small_mallocs()],
        ["gdb"],
    ),
    Entry("strace, running a program", lambda: ["strace", "-f", "-qq", "-e", "trace=execve", "-o", "/dev/null", *small_mallocs()], ["strace"]),
    Entry("qemu-user", lambda: ["qemu-x86_64", c_program("small_mallocs", "static", "-static"), "1000000"], ["qemu-user"]),
]


# ---- packages


def installed(package: str) -> bool:
    found = subprocess.run(["dpkg-query", "-W", "-f=${db:Status-Status}", package], capture_output=True, text=True, check=False)
    return found.stdout == "installed"


def version(packages: list[str]) -> str:
    """Of the first package, without what only Debian counts."""
    if not packages:
        return ""
    text = subprocess.run(["dpkg-query", "-W", "-f=${Version}", packages[0]], capture_output=True, text=True, check=False).stdout
    return re.sub(r"^\d+:", "", text).split("+")[0].split("-")[0]


def apt(*arguments: str) -> bool:
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    # RUNLEVEL=1: packages with a service must not start it.
    command = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", "apt-get", *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def install(entries: list[Entry]) -> None:
    missing = [package for package in dict.fromkeys(p for entry in entries for p in entry.packages) if not installed(package)]
    if not missing:
        return
    print(f"installing {' '.join(missing)}", file=sys.stderr, flush=True)
    apt("update", "-qq")
    if not apt("install", "-y", "-qq", "--no-install-recommends", *missing):
        for package in missing:
            apt("install", "-y", "-qq", "--no-install-recommends", package)


# ---- running


def lines_of_lowtide(text: str) -> list[str]:
    """What lowtide said but for the summary."""
    return [line.removeprefix("lowtide: ") for line in text.splitlines() if line.startswith("lowtide: ") and "ram peak" not in line]


def outcome(native: lab.Result, limited: lab.Result, ram: int) -> str:
    said = [line for line in lines_of_lowtide(limited.stderr) if not line.startswith("warning:")]
    if limited.ended_by:
        return f"hangs ({limited.ended_by} ends it)"
    if limited.status in REFUSALS and limited.status != native.status and said:
        return "refused" if not limited.stats else "stopped"
    if limited.status != native.status:
        return f"crashes (status {limited.status})"
    if limited.stdout != native.stdout:
        return "wrong"
    ratio = limited.seconds / native.seconds
    words = ["right" if ratio <= SLOW_RATIO else "slow"]
    if limited.peak > ram * PEAK_RATIO + PEAK_MORE:
        words.append("over the limit")
    if not limited.stats.get("evictions", {}).get("pages"):
        words.append("nothing evicted")
    return ", ".join(words)


def short(text: str, most: int = 160) -> str:
    text = text.replace(str(lab.ROOT), ".").replace(str(lab.TARGET), "target").replace("|", "\\|")
    return text if len(text) <= most else text[: most - 3] + "..."


def row(entry: Entry) -> list[str]:
    name = f"{entry.name} {version(entry.packages)}".strip() if entry.packages else entry.name
    absent = [package for package in entry.packages if not installed(package)]
    if absent:
        return [name, "", "", "skipped", f"{' '.join(absent)} can't be had here"]
    try:
        command = entry.command()
    except (OSError, subprocess.CalledProcessError) as error:
        return [name, "", "", "skipped", short(f"can't be built: {error}")]
    environment = {"LC_ALL": "C", **entry.env}
    native = lab.run(command, env=environment, deadline=lab.DEADLINE_SECONDS, copies=entry.copies)
    if native.status != 0 or not native.stdout.strip() or native.ended_by:
        why = (native.stderr.strip().splitlines() or ["it says nothing"])[-1]
        return [name, "", "", "skipped", short(f"does not run natively either: status {native.status}, {why}")]
    ram = max(LEAST_RAM, native.peak * PERCENT // 100)
    longest = native.seconds * LONGEST_RATIO + LONGEST_MORE
    limited = lab.run(command, ram=ram, env=environment, deadline=longest, copies=entry.copies)
    # The machine may have had other work at the time: the better of a run before and one after.
    again = lab.run(command, env=environment, deadline=lab.DEADLINE_SECONDS, copies=entry.copies)
    if again.stdout != native.stdout:
        return [name, "", "", "skipped", "two native runs differ"]
    native.seconds = min(native.seconds, again.seconds)
    result = outcome(native, limited, ram)
    log = BUILT / "logs" / re.sub(r"\W+", "-", entry.name)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"{command}\n--- native\n{native}\n--- limited to {ram}\n{limited}\n")
    remarks = lines_of_lowtide(limited.stderr)
    if result != "right":
        if entry.why:
            remarks.append(entry.why)
        elif not remarks and result.startswith(("crashes", "wrong")):
            remarks += limited.stderr.strip().splitlines()[-1:] or ["it says nothing"]
    native_cell = f"{lab.mib(native.peak)}, {native.seconds:.1f} s"
    if result == "refused":
        limited_cell = ""
    else:
        limited_cell = f"{lab.mib(limited.peak)} of {lab.mib(ram)}, {limited.seconds:.1f} s ({limited.seconds / native.seconds:.1f}x)"
    return [name, native_cell, limited_cell, result, short("; ".join(remarks), 400)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="only entries whose name begins with NAME")
    only = parser.parse_args().only
    lab.require_lowtide()
    entries = [entry for entry in ENTRIES if not only or any(entry.name.lower().startswith(part.lower()) for part in only)]
    install(entries)
    busy_before = os.getloadavg()[0]
    lines = ["| program | native: peak RAM, time | under lowtide: peak, limit, time | outcome | what it says, and why |", "|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    for entry in entries:
        lines.append(f"| {' | '.join(row(entry))} |")
        print(lines[-1], flush=True)
    if not only:
        system = f"{os.cpu_count()} CPUs, Linux {platform.release().split('-')[0]}, {platform.machine()}"
        busy = f"threads that ran or waited to run, on average: {busy_before:.1f} in the minute before, {os.getloadavg()[2]:.1f} in the 15 at its end"
        made = "<!-- Made by `make programs`; change tests/programs_table.py or tests/programs-head.md. -->\n"
        how = f"Made by `make programs`: {system}; one run each, natively the faster of two ({busy})."
        how = textwrap.fill(how, 100, break_long_words=False, break_on_hyphens=False)
        PAGE.write_text("\n\n".join([made + HEAD.read_text().rstrip(), how, "\n".join(lines)]) + "\n")


main()
