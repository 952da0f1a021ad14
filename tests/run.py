#!/usr/bin/env python3
"""run.py BUILD... [-- [BINARY=]WORDS...]: builds test binaries by `cargo BUILD...`, and runs some at a time, as `cargo test` does.

In some binaries each test takes a turn (tests/turn.rs), alone or beside others. These get a thread for each test: one that waits to be alone holds up
nobody. For the others the turn is taken here. What a binary prints is in target/tests; of one that fails it is shown.
WORDS are for each binary, or, with BINARY= before them, for that one; if there are any with a name, only those binaries run.
"""

import concurrent.futures
import fcntl
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
LOGS = TARGET / "tests"
CARGO = os.environ.get("CARGO", "cargo")
AT_A_TIME = 2
LAST_LINES = 80
# In this order: those that wait for servers and sleeping programs, then those that are not named here, then those with tests that are to be alone.
TAKE_TURNS = "remote real_programs torture own_threads own_faults control top metrics report".split()
LATER = "swapoff privilege".split()
# They bound memory, times or rates, or change settings of the machine.
ALONE = "in_process cli region away tls scale fault race".split()


def built(build: list[str]) -> list[tuple[str, str, str]]:
    """Of each binary of tests: its name, its path, and where it runs."""
    command = [CARGO, *build, "--message-format=json-render-diagnostics"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)
    found = []
    for message in map(json.loads, filter(None, done.stdout.splitlines())):
        if message.get("executable") and message["profile"]["test"]:
            package = Path(message["manifest_path"]).parent
            name = message["target"]["name"] if "test" in message["target"]["kind"] else f"{package.name}, {message['target']['kind'][0]}"
            found.append((name, message["executable"], str(package)))
    order = [*TAKE_TURNS, None, *LATER, *ALONE]
    return sorted(found, key=lambda binary: order.index(binary[0] if binary[0] in order else None))


def run(binary: tuple[str, str, str], words: list[str]) -> bool:
    name, path, package = binary
    began, log = time.monotonic(), LOGS / f"{name.replace(', ', '-')}.log"
    with open(TARGET / "tmp/turn", "a") as turn, open(log, "w") as out:
        if name in TAKE_TURNS + LATER:
            words = ["--test-threads=1000", *words]
        else:
            fcntl.flock(turn, fcntl.LOCK_EX if name in ALONE else fcntl.LOCK_SH)
        done = subprocess.run([path, *words], cwd=package, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, "LOWTIDE_BUILT": "1"})
    text = log.read_text(errors="replace")
    said = [line.removeprefix("test result: ") for line in text.splitlines() if line.startswith("test result: ")]
    print(f"{name}: {said[-1] if said else f'status {done.returncode}'} ({time.monotonic() - began:.0f} s)", flush=True)
    if done.returncode:
        print(text, flush=True)
    return done.returncode == 0


def failures(name: str) -> str:
    """What the failed tests of a binary said, without what the others did."""
    text = (LOGS / f"{name.replace(', ', '-')}.log").read_text(errors="replace")
    return f"\n{name}:\n" + "\n".join((text.partition("\nfailures:\n")[2] or text).splitlines()[-LAST_LINES:])


def main() -> None:
    build, _, rest = " ".join(map(shlex.quote, sys.argv[1:])).partition(" -- ")
    named, all_words = {}, []
    for word in shlex.split(rest):
        name, is_named, words = word.partition("=")
        if is_named and name.isidentifier():
            named[name] = shlex.split(words)
        else:
            all_words.append(word)
    binaries = [binary for binary in built(shlex.split(build)) if not named or binary[0] in named]
    for directory in [LOGS, TARGET / "tmp"]:
        directory.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        right = list(pool.map(lambda binary: run(binary, named.get(binary[0], []) + all_words), binaries))
    failed = [binary[0] for binary, is_right in zip(binaries, right) if not is_right]
    # Again, and last: whoever is shown only the end of a long output sees why.
    print(*map(failures, failed), sep="\n", end="", flush=True)
    sys.exit(f"\nfailed: {', '.join(failed)}" if failed else 0)


main()
