#!/usr/bin/env python3
"""licences.py FILE: the licences of all that is linked into the command `lowtide` and its agent, in one file.

From the sources that cargo has unpacked, so it is right for the versions of Cargo.lock. Fails where a crate has no licence text, unless it may be had under
the Apache licence, whose text is the same for all."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TARGET = "x86_64-unknown-linux-gnu"


def linked(package: str) -> dict[str, str]:
    """Names and versions of what `package` links: neither build scripts, macros nor tests."""
    command = ["cargo", "tree", "--locked", "-p", package, "-e", "normal,no-proc-macro", "--target", TARGET, "--prefix", "none", "-f", "{p}"]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return {f"{name} {version[1:]}": name for name, version, *_ in (line.split() for line in lines)}


def main(out: Path) -> None:
    metadata = json.loads(subprocess.run(
        ["cargo", "metadata", "--locked", "--format-version", "1"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout)
    packages = {f"{package['name']} {package['version']}": package for package in metadata["packages"]}
    texts: dict[str, list[str]] = {}
    for what, name in sorted((linked("lowtide") | linked("lowtide-agent")).items()):
        if name.startswith("lowtide"):
            continue
        package = packages[what]
        folder = Path(package["manifest_path"]).parent
        # C sources have theirs in the folder of those.
        files = [path for pattern in ("LICEN[CS]E*", "COPYING*", "*/LICEN[CS]E*", "*/lib/LICEN[CS]E*") for path in folder.glob(pattern)]
        files = sorted({path for path in files if path.is_file()})
        if not files and "Apache-2.0" in package["license"]:
            # Some packages forget the text; that of this licence is the same for all.
            texts.setdefault((ROOT / "LICENSE-APACHE").read_text().strip(), []).append(f"{what} ({package['license']})")
        elif not files:
            sys.exit(f"licences.py: {what} ({package['license']}) has no licence text in {folder}")
        for path in files:
            head = f"{what} ({package['license']}), {path.relative_to(folder)}"
            texts.setdefault(path.read_text(errors="replace").strip(), []).append(head)
    bar = "=" * 100
    out.write_text("".join(f"{bar}\n{chr(10).join(heads)}\n{bar}\n\n{text}\n\n" for text, heads in texts.items()))


main(Path(sys.argv[1]))
