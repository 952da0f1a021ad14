"""An out-of-core sort: 96 MiB of numbers in 24 MiB of RAM."""

import lowtide
import numpy as np

numbers = lowtide.empty(12 << 20, "u8", ram="24M")
random = np.random.default_rng(3)
chunk = 1 << 18
for start in range(0, len(numbers), chunk):
    numbers[start : start + chunk] = random.integers(0, 1 << 24, chunk)
total = int(numbers.sum())
numbers.sort()
assert all((numbers[i : i + chunk][1:] >= numbers[i : i + chunk][:-1]).all() for i in range(0, len(numbers), chunk))
assert int(numbers.sum()) == total
stats = lowtide.region_of(numbers).stats()
# Pages on their way into the pool are counted twice for a moment: up to a MiB.
assert stats["pages_out"] > 0 and stats["ram_now"] <= stats["ram_limit"] + (1 << 20)
print(f"sorted {numbers.nbytes >> 20} MiB in {stats['ram_limit'] >> 20} MiB: {stats['pages_out']} pages out, {stats['pages_in']} in")
