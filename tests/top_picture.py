#!/usr/bin/env python3
"""Draws docs/images/top.svg: what `lowtide top` really shows of a run that thrashes, in a terminal (tmux) of 100 x 30.

`make picture`. Needs tmux, and rich in target/venv."""

import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
LOWTIDE = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "lowtide"
COLUMNS, ROWS = 100, 30
SECONDS = 50

# Two programs beside each other: one walks through what compresses, the other jumps about in what does not.
WALKS = """
import numpy as np, time
a = np.arange(70_000_000, dtype=np.int64)
end = time.monotonic() + 300
while time.monotonic() < end:
    a += 1
"""
JUMPS = """
import numpy as np, time
rng = np.random.default_rng(1)
a = rng.integers(0, 1 << 62, 30_000_000, dtype=np.int64)
end = time.monotonic() + 300
while time.monotonic() < end:
    near = rng.integers(0, len(a) // 3, 2000)
    a[near] += 1
    a[rng.integers(0, len(a), 20)] += 1
    time.sleep(0.01)
"""


def tmux(*words: str) -> str:
    return subprocess.run(["tmux", "-L", f"lowtide-{os.getpid()}", "-f", "/dev/null", *words], check=True, capture_output=True, text=True).stdout


def svg(screen: str) -> str:
    """The screen as a picture that loads nothing."""
    console = Console(record=True, width=COLUMNS, height=ROWS, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    console.print(Text.from_ansi(screen), end="", no_wrap=True, crop=True)
    picture = console.export_svg(title="lowtide top", unique_id="top")
    return re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)


def main() -> None:
    job = 'python3 -c "$0" & python3 -c "$1"; wait'
    env = dict(os.environ, OMP_NUM_THREADS="1", PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    run = subprocess.Popen([LOWTIDE, "run", "--ram", "400M", "--quiet", "sh", "-c", job, WALKS, JUMPS], env=env)
    try:
        time.sleep(3)
        tmux("new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), f"LANG=C.UTF-8 {LOWTIDE} top {run.pid}")
        try:
            time.sleep(SECONDS)
            screen = tmux("capture-pane", "-p", "-e")
        finally:
            tmux("kill-server")
    finally:
        # With it go all its processes.
        run.kill()
        run.wait()
    picture = ROOT / "docs" / "images" / "top.svg"
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(svg(screen))
    print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size} bytes")


if __name__ == "__main__":
    main()
