"""Millions of small Python objects: built, walked, changed, dropped in part, walked again. small_objects.py COUNT"""

import gc
import sys
import zlib


class Node:
    __slots__ = ("key", "name", "next")

    def __init__(self, key, name, following):
        self.key, self.name, self.next = key, name, following


def digest(table) -> int:
    crc = 0
    for key, value in table.items():
        crc = zlib.crc32(f"{key}:{value}".encode(), crc)
    return crc


def main() -> None:
    count = int(sys.argv[1])
    table = {i: (f"name-{i % 1000:04d}-{i}", float(i), [i, i + 1]) for i in range(count)}
    first = digest(table)
    head = None
    for i in range(count):
        head = Node(i, f"node {i}", head)
    for i in range(0, count, 3):
        del table[i]
    for i in range(0, count, 3):
        table[i] = (f"again-{i}", float(-i), [i])
    gc.collect()
    node, seen, total = head, 0, 0
    while node is not None:
        assert node.name == f"node {node.key}", node.name
        total = (total * 31 + node.key) % 1_000_000_007
        seen += 1
        node = node.next
    assert seen == count
    print("OK", first, digest(table), total)
    head_key = head.key
    while head is not None:  # dropped one by one: a recursive drop would need a deep stack
        head = head.next
    assert head_key == count - 1


main()
