"""make programs: programs that nobody here wrote, natively and in a part of the memory that they then took: bench/results/programs.md.

Each does a job that prints a checksum over all that it keeps (tests/runtimes, tests/programs). Packages that are missing are installed;
what can't be had is skipped, and the table says so. `--part NAME` makes one of the page's tables anew and leaves the others as they are;
`--texts` only puts the files tests/programs-*.md into the page.
`--only NAME` (repeatable; the beginning of the name will do) runs some and writes nothing; `--percent N` (repeatable) at N % of the native peak.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

import go_settings
import lab
import without_hooks
from made import BUILT, GO, NPM, Command, Entry, built, c_program, directory, from_npm, go_built, job, small_mallocs

PAGE = lab.RESULTS / "programs.md"
MADE = "<!-- Made by `make programs`; change tests/programs_table.py or tests/programs-*.md. -->"
# A run under lowtide may take so many times as long as natively, and so many seconds more.
LONGEST_RATIO, LONGEST_MORE = 60, 60
# Right, but that much slower, is called slow.
SLOW_RATIO = 10
# How far above the limit the highest sample may be, in MiB.
PEAK_MORE = 32 * lab.MIB
REFUSALS = (125, 126, 127)
LEAST_RAM = 16 * lab.MIB

RANDOM = "it jumps about in its objects while it makes them: hash tables of strings, a fault for each page, few that read-ahead could guess"
SHARED = "its heap is shared memory (a memfd), which is neither paged nor counted: the limit is for the rest"


def rust_program() -> str:
    return built("rust-job", ["rustc", "-O", "-o", "OUT", job("job.rs")], job("job.rs"))


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


def chromium(more: str = "") -> Command:
    profile = directory("chromium")
    page = f"file://{job('page.html')}"
    flags = f"--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-extensions --no-first-run --virtual-time-budget=100000 {more}"
    script = f"trap 'rm -rf {profile}' EXIT; rm -rf {profile}; chromium {flags} --user-data-dir={profile} --dump-dom {page} 2>/dev/null | grep -o 'OK [^<]*'"
    return ["sh", "-c", script]


def bun() -> Command:
    return [str(from_npm("bun", "@oven/bun-linux-x64@1.4") / "node_modules/@oven/bun-linux-x64/bin/bun"), job("job.js")]


def deno() -> Command:
    return [str(from_npm("deno", "@deno/linux-x64-glibc@2.9") / "node_modules/@deno/linux-x64-glibc/deno"), "run", "-A", job("job.js")]


ENTRIES = [
    # Lisps, functional and logic languages.
    Entry("SBCL", lambda: ["sbcl", "--dynamic-space-size", "1GB", "--script", job("job.lisp")], ["sbcl"]),
    Entry("ECL", lambda: ["ecl", "--shell", job("job.lisp")], ["ecl"]),
    Entry("Guile", lambda: ["guile", "--no-auto-compile", job("job.scm")], ["guile-3.0"]),
    Entry("Chez Scheme", lambda: ["chezscheme", "--script", job("job.scm")], ["chezscheme"]),
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
    Entry("Go, linked dynamically (cgo)", lambda: [go_built("go-cgo", ["job.go", "with_c.go"])], GO),
    Entry("Go, linked statically", lambda: [go_built("go-static", ["job.go"])], GO),
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
    missing = [package for package in dict.fromkeys(p for entry in entries for p in [*entry.packages, *entry.needs]) if not installed(package)]
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


def outcome(native: lab.Result, limited: lab.Result, ram: int, peak_ratio: float) -> str:
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
    if limited.peak > ram * peak_ratio + PEAK_MORE:
        words.append("over the limit")
    if not limited.stats.get("evictions", {}).get("pages"):
        words.append("nothing evicted")
    return ", ".join(words)


def short(text: str, most: int = 160) -> str:
    text = text.replace(str(lab.ROOT), ".").replace(str(lab.TARGET), "target").replace("|", "\\|")
    return text if len(text) <= most else text[: most - 3] + "..."


def row(entry: Entry, percents: list[int], peak_ratio: float) -> list[str]:
    name = f"{entry.name} {version(entry.packages)}".strip() if entry.packages else entry.name
    nothing = [""] * len(percents)
    absent = [package for package in [*entry.packages, *entry.needs] if not installed(package)]
    if absent:
        return [name, "", *nothing, "skipped", f"{' '.join(absent)} can't be had here"]
    try:
        command = entry.command()
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        return [name, "", *nothing, "skipped", short(f"can't be built: {error}")]
    environment = {"LC_ALL": "C", **entry.env}
    native = lab.run(command, env=environment, deadline=lab.DEADLINE_SECONDS, copies=entry.copies)
    if native.status != 0 or not native.stdout.strip() or native.ended_by:
        why = (native.stderr.strip().splitlines() or ["it says nothing"])[-1]
        return [name, "", *nothing, "skipped", short(f"does not run natively either: status {native.status}, {why}")]
    limits = [max(LEAST_RAM, native.peak * percent // 100) for percent in percents]
    longest = native.seconds * LONGEST_RATIO + LONGEST_MORE
    runs = [lab.run(command, ram=ram, env=environment, deadline=longest, copies=entry.copies) for ram in limits]
    # The machine may have had other work at the time: the better of a run before and one after.
    again = lab.run(command, env=environment, deadline=lab.DEADLINE_SECONDS, copies=entry.copies)
    if again.stdout != native.stdout:
        return [name, "", *nothing, "skipped", "two native runs differ"]
    native.seconds = min(native.seconds, again.seconds)
    results = [outcome(native, limited, ram, peak_ratio) for limited, ram in zip(runs, limits, strict=True)]
    log = BUILT / "logs" / re.sub(r"\W+", "-", entry.name)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(
        "\n".join([str(command), "--- native", str(native), *(f"--- limited to {ram}\n{run}" for run, ram in zip(runs, limits, strict=True))]) + "\n"
    )
    remarks = list(dict.fromkeys(line for run in runs for line in lines_of_lowtide(run.stderr)))
    if any(result != "right" for result in results):
        if entry.why:
            remarks.append(entry.why)
        elif not remarks and any(result.startswith(("crashes", "wrong")) for result in results):
            remarks += runs[-1].stderr.strip().splitlines()[-1:] or ["it says nothing"]
    cells = [
        "" if result == "refused" else f"{lab.mib(run.peak)} of {lab.mib(ram)}, {run.seconds:.1f} s ({run.seconds / native.seconds:.1f}x)"
        for run, ram, result in zip(runs, limits, results, strict=True)
    ]
    return [name, f"{lab.mib(native.peak)}, {native.seconds:.1f} s", *cells, "; ".join(dict.fromkeys(results)), short("; ".join(remarks), 400)]


# ---- the page


@dataclass
class Part:
    """A table of the page, and what the page says before it: tests/programs-NAME.md."""

    name: str
    entries: Callable[[], list[Entry]]
    percents: list[int]
    # A sample may be so many times the limit, and PEAK_MORE above that.
    peak_ratio: float

    def run(self, entries: list[Entry]) -> list[str]:
        places = [f"at {percent} %" for percent in self.percents] if len(self.percents) > 1 else ["under lowtide"]
        heads = ["program", "native: peak RAM, time", *(f"{place}: peak, limit, time" for place in places), "outcome", "what it says, and why"]
        lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        print("\n".join(lines), flush=True)
        for entry in entries:
            lines.append(f"| {' | '.join(row(entry, self.percents, self.peak_ratio))} |")
            print(lines[-1], flush=True)
        return lines

    def text(self) -> str:
        return (lab.ROOT / f"tests/programs-{self.name}.md").read_text().rstrip()

    def made(self) -> str:
        entries = self.entries()
        install(entries)
        busy_before = os.getloadavg()[0]
        lines = self.run(entries)
        system = f"{os.cpu_count()} CPUs, Linux {platform.release().split('-')[0]}, {platform.machine()}"
        busy = f"threads that ran or waited to run, on average: {busy_before:.1f} in the minute before, {os.getloadavg()[2]:.1f} in the 15 at its end"
        how = f"Made by `make programs`: {system}; one run each, natively the faster of two ({busy})."
        how = textwrap.fill(how, 100, break_long_words=False, break_on_hyphens=False)
        return "\n\n".join([self.text(), how, "\n".join(lines)]) + "\n"


# In the page's order; each but the first has a heading of the second level, and only one.
PARTS = [
    Part("head", lambda: ENTRIES, [60], 1.15),
    Part("without-hooks", lambda: without_hooks.ENTRIES, [60, 40], 1.10),
    Part("go", go_settings.rows, [60], 1.15),
]


def parts_of_page() -> list[str]:
    """As it is now; what it does not have yet is empty."""
    parts = [part.strip("\n") + "\n" for part in re.split(r"^(?=## )", re.sub(r"^<!--.*-->\n", "", PAGE.read_text()), flags=re.MULTILINE)]
    return parts + [""] * (len(PARTS) - len(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="only entries whose name begins with NAME")
    parser.add_argument("--percent", action="append", type=int, metavar="N", help="with --only: in N %% of the native peak, instead of those of the page")
    parser.add_argument("--part", choices=[part.name for part in PARTS], help="only this table of the page")
    parser.add_argument("--texts", action="store_true", help="run nothing: only the page's texts anew")
    arguments = parser.parse_args()
    if arguments.texts:
        tables = [old[old.index("Made by `make programs`") :] for old in parts_of_page()]
        PAGE.write_text("\n".join([MADE, *(f"{part.text()}\n\n{table}" for part, table in zip(PARTS, tables, strict=True))]))
        return
    lab.require_lowtide()
    chosen = [part for part in PARTS if arguments.part in (None, part.name)]
    if arguments.only:
        for part in chosen:
            part.percents = arguments.percent or part.percents
            entries = [entry for entry in part.entries() if any(entry.name.lower().startswith(name.lower()) for name in arguments.only)]
            install(entries)
            if entries:
                part.run(entries)
        return
    old = parts_of_page() if arguments.part else [""] * len(PARTS)
    texts = [part.made() if part in chosen else text for part, text in zip(PARTS, old, strict=True)]
    PAGE.write_text("\n".join([MADE, *filter(None, texts)]))


if __name__ == "__main__":
    main()
