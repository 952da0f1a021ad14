"""The demonstration's program: an ordinary analysis with numpy that wants about 1.2 GiB. It knows nothing of lowtide.

It makes a table of events as a log has them (nearly in the order of time), sorts it, sums up per customer, and checks its own
result by another way. Prints one line: a checksum of all that it computed.
"""

import hashlib
import sys

import numpy as np

STEP = 1 << 20


def main() -> None:
    count = int(sys.argv[1]) * 131072 // 5 // STEP * STEP  # five columns of 8 bytes at the peak
    random = np.random.Generator(np.random.PCG64(2024))
    when, customer, cents = (np.empty(count, dtype=np.int64) for _ in range(3))
    for start in range(0, count, STEP):
        part = slice(start, start + STEP)
        # Thirty days, and up to ten minutes late.
        when[part] = 1_700_000_000 + np.arange(start, start + STEP) * (30 * 86_400) // count + random.integers(0, 600, STEP)
        customer[part] = random.zipf(1.3, STEP) % 100_000
        cents[part] = random.integers(1, 1_000_000, STEP)

    # Per customer, before the table is put in another order.
    first = np.zeros(100_000, dtype=np.int64)
    for start in range(0, count, STEP):
        np.add.at(first, customer[start : start + STEP], cents[start : start + STEP])

    # One key per event, sorted; then the columns in that order, a block at a time.
    key = when * (1 << 30) + np.arange(count)
    key.sort()
    order = key & ((1 << 30) - 1)
    second, last, digest = np.zeros(100_000, dtype=np.int64), 0, hashlib.sha256()
    for start in range(0, count, STEP):
        rows = order[start : start + STEP]
        times = when[rows]
        assert times[0] >= last and np.all(np.diff(times) >= 0), "not in order of time"
        last = times[-1]
        np.add.at(second, customer[rows], cents[rows])
        digest.update(times)
        digest.update(cents[rows])
    assert np.array_equal(first, second), "the sums per customer differ"
    digest.update(second)
    print(f"{count:,} events, {digest.hexdigest()[:32]}")


main()
