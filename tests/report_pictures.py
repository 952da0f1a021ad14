"""make pictures: the report of a run that thrashes and of one that does not, in a browser: light, dark, on a narrow screen and printed.

They are to be looked at. With `readme`: only the picture of docs/report.md, docs/images/report.png. What is checked is that the browser finds nothing to complain of, and that light, dark and paper look different.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import lab

PICTURES = lab.TARGET / "pictures"
# How Chromium calls the schemes in --blink-settings.
DARK, LIGHT = 0, 1


def browse(*options: str) -> str:
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        sys.exit(f"chromium: {done.stderr}")
    return done.stderr


def picture(page: Path, name: str, width: int, height: int, scheme: int) -> Path:
    file = PICTURES / f"{page.stem}-{name}.png"
    said = browse(f"--blink-settings=preferredColorScheme={scheme}", f"--window-size={width},{height}", f"--screenshot={file}", page.as_uri())
    complaints = [line for line in said.splitlines() if "CONSOLE" in line]
    if complaints:
        sys.exit(f"{page}: {complaints}")
    return file


def for_readme() -> None:
    """As a user writes it: the page shows the command line."""
    page = PICTURES / "report.html"
    environment = {**os.environ, "PATH": f"{lab.LOWTIDE.parent}:{os.environ['PATH']}"}
    command = ["lowtide", "run", "--ram", "192M", "--report", page.name, "python3", "big.py"]
    shutil.copy(lab.ROOT / "demo/big.py", PICTURES)
    subprocess.run(command, check=True, capture_output=True, cwd=PICTURES, env=environment)
    shutil.copy(picture(page, "readme", 900, 1500, LIGHT), lab.ROOT / "docs/images/report.png")


def main() -> int:
    lab.require_lowtide()
    PICTURES.mkdir(parents=True, exist_ok=True)
    if sys.argv[1:] == ["readme"]:
        for_readme()
        return 0
    touches = lab.compiled("touches")
    runs = {
        "thrashes": (["--ram", "96M", "--swap", "auto"], [touches, "192", "300000", "skewed", "n"]),
        "fits": (["--ram", "256M"], [touches, "64", "3000000", "random", "t"]),
        "compresses": (["--ram", "128M", "--swap", "ram"], [touches, "256", "300000", "random", "t"]),
    }
    for name, (options, command) in runs.items():
        page = PICTURES / f"{name}.html"
        subprocess.run([lab.LOWTIDE, "run", "--quiet", *options, "--report", page, "--", *command], check=True, capture_output=True)
        light, dark = picture(page, "light", 1000, 4200, LIGHT), picture(page, "dark", 1000, 4200, DARK)
        picture(page, "narrow", 500, 4800, LIGHT)
        paper = PICTURES / f"{name}.pdf"
        browse("--no-pdf-header-footer", f"--print-to-pdf={paper}", page.as_uri())
        if light.read_bytes() == dark.read_bytes() or paper.stat().st_size < 10_000:
            sys.exit(f"{page}: light and dark are the same, or nothing was printed")
    print(f"look at {PICTURES}")
    return 0


sys.exit(main())
