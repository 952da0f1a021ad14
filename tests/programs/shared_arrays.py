"""Processes that share large arrays: shared_arrays.py fork|spawn MIB WORKERS.

The parent has an array of MIB and a table of MIB / 4 that it goes on changing. Tasks go to a pool of WORKERS, whose processes are replaced after three
tasks each. Forked workers read the parent's array where it is; spawned ones get their part of it over a pipe. Each makes arrays of its own of a
quarter of MIB. What they find is printed at the end."""

import hashlib
import multiprocessing
import sys

import numpy

array: numpy.ndarray | None = None


def work(task: tuple) -> str:
    number, parts, part = task
    if part is None:
        part = numpy.array_split(array, parts)[number % parts]
    own = numpy.repeat(part, max(1, parts // 4)) * (number + 1)
    own[:: 97] += number
    found = hashlib.md5(own.tobytes()).hexdigest()
    order = numpy.sort(own)
    return f"{number} {found} {int(order[0])} {int(order[-1])} {int(order[len(order) // 2])} {int(own.sum() & 0xFFFFFFFF)}"


def main() -> None:
    global array
    method, size, workers = sys.argv[1], int(sys.argv[2]) << 20, int(sys.argv[3])
    array = numpy.arange(size // 8, dtype=numpy.int64) // 3 * 7919 % 1_000_003
    table = numpy.arange(size // 32, dtype=numpy.int64)
    tasks, parts = 4 * workers, 2 * workers
    split = numpy.array_split(array, parts)
    each = ((n, parts, None if method == "fork" else split[n % parts]) for n in range(tasks))
    with multiprocessing.get_context(method).Pool(workers, maxtasksperchild=3) as pool:
        for line in pool.imap(work, each):
            table += len(line)
            print(line)
    print("OK", hashlib.md5(array.tobytes()).hexdigest(), hashlib.md5(table.tobytes()).hexdigest())


if __name__ == "__main__":
    main()
