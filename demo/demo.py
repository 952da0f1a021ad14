"""make demo: an unmodified program, natively and in 40 % of the memory it needs. Exit status 1 if the two disagree."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import lab

SIZE_MIB = int(os.environ.get("DEMO_MIB", "1200"))


def row(name: str, result: lab.Result) -> None:
    print(f"  {name:<26} {lab.mib(result.peak):>10} {result.seconds:>9.1f} s   {result.stdout.strip() or '(no answer)'}")


def main() -> int:
    lab.require_lowtide()
    program = [str(lab.PYTHON), str(lab.ROOT / "demo/job.py"), str(SIZE_MIB)]
    print("The program: a numpy analysis (demo/job.py). Memory is sampled from outside.\n", flush=True)
    print(f"  {'':<26} {'peak RAM':>10} {'time':>11}   answer", flush=True)
    native = lab.run(program)
    row("native", native)
    ram = native.peak * 40 // 100
    limited = lab.run(program, ram=ram)
    row(f"lowtide run --ram {ram // lab.MIB}M", limited)

    pages = limited.stats.get("evictions", {}).get("pages", 0)
    faults = limited.stats.get("faults", {})
    back = sum(faults.get(kind, 0) for kind in ("zero", "staged", "pool", "device", "read_ahead_pages"))
    print(f"\n  pages out {pages:,} ({lab.mib(pages * 4096)}), in {back:,} ({lab.mib(back * 4096)})", end="")
    print(f"; compression ratio {limited.stats.get('compression_ratio') or 0:.1f}")
    for line in limited.stderr.splitlines():
        print(f"  {line}")
    if native.status != 0 or limited.status != 0 or native.stdout != limited.stdout:
        print(f"\nDIFFERENT: exit statuses {native.status} and {limited.status}\n{native.stderr}", file=sys.stderr)
        return 1
    if pages == 0:
        print("\nNothing was evicted: this shows nothing.", file=sys.stderr)
        return 1
    print("\n  The answers are the same.")
    return 0


sys.exit(main())
