"""A hash join: two tables of 48 MiB, partitioned by key, in one group of 32 MiB of RAM."""

import lowtide
import numpy as np

ROWS, PARTS = 3 << 20, 32
left = lowtide.empty((ROWS, 2), "u8", ram="32M")
shared = lowtide.region_of(left)
right = lowtide.empty((ROWS, 2), "u8", group=shared)


random = np.random.default_rng(5)
chunk = 1 << 16
for start in range(0, ROWS, chunk):
    part = slice(start, start + chunk)
    left[part, 0] = np.arange(start, start + chunk)
    left[part, 1] = left[part, 0] * 3
    right[part, 0] = random.integers(0, 2 * ROWS, chunk)
    right[part, 1] = right[part, 0] * 5

matched = checked = 0
for part in range(PARTS):
    mine = left[left[:, 0] % PARTS == part]
    values = dict(zip(mine[:, 0].tolist(), mine[:, 1].tolist()))
    other = right[right[:, 0] % PARTS == part]
    for key, value in other.tolist():
        if key in values:
            matched += 1
            checked += values[key] * 5 == value * 3
expected = int(sum((right[s : s + chunk, 0] < ROWS).sum() for s in range(0, ROWS, chunk)))
assert matched == checked == expected
stats = shared.stats()
assert stats["pages_out"] > 0
print(f"joined {matched} rows of {2 * left.nbytes >> 20} MiB in {stats['ram_limit'] >> 20} MiB: {stats['pages_out']} pages out")
