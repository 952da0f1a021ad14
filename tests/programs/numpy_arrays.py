"""numpy on arrays larger than the limit: sort, xor, md5, each result checked. numpy_arrays.py rows|random MIB"""

import hashlib
import sys

import numpy as np


def make(kind: str, count: int) -> np.ndarray:
    generator = np.random.Generator(np.random.PCG64(7))
    if kind == "random":
        return generator.integers(0, 2**63, count, dtype=np.int64)
    # Records of 16 words, of which one is their own: packs well, as tables do.
    table = generator.integers(0, 2**63, (8, 16), dtype=np.int64)
    rows = np.empty((count // 16, 16), dtype=np.int64)
    step = 1 << 14
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        part[:] = table[generator.integers(0, 8, len(part))]
        part[:, 3] = np.arange(start, start + len(part))
    return rows.reshape(-1)


def main() -> None:
    kind, mib = sys.argv[1], int(sys.argv[2])
    data = make(kind, mib * 131072 // 2)
    total, parity = int(np.sum(data, dtype=np.uint64)), int(np.bitwise_xor.reduce(data))
    before = hashlib.md5(data).hexdigest()
    ordered = data.copy()
    ordered.sort()
    assert hashlib.md5(data).hexdigest() == before, "the source of the copy changed"
    assert int(np.sum(ordered, dtype=np.uint64)) == total, "the sum changed"
    assert int(np.bitwise_xor.reduce(ordered)) == parity, "the parity changed"
    assert all(bool(np.all(ordered[i : i + 65536][:-1] <= ordered[i : i + 65536][1:])) for i in range(0, len(ordered), 65535))
    data ^= ordered
    after = hashlib.md5(data).hexdigest()
    data ^= ordered
    assert hashlib.md5(data).hexdigest() == before, "xor twice is not the identity"
    print("OK", kind, before, hashlib.md5(ordered).hexdigest(), after)


main()
