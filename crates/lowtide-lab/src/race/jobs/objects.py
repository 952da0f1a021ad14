"""Python's own objects: a dictionary of records, lists, strings; changed, looked up, walked, dropped in part. objects.py COUNT"""

import random
import sys
import zlib


def digest(records: dict) -> int:
    crc = 0
    for key, record in records.items():
        crc = zlib.crc32(f"{key}:{record['name']}:{record['visits']}:{record['tags']}".encode(), crc)
    return crc


def main() -> None:
    count = int(sys.argv[1])
    records = {f"user-{i}": {"id": i, "name": f"name {i * 7919 % 1000003}", "visits": 0, "tags": [i, f"tag-{i % 1000}"]} for i in range(count)}
    print(digest(records))
    numbers, found = random.Random(3), 0
    for step in range(count):
        i = int(numbers.random() ** 3 * count)
        record = records[f"user-{i}"]
        record["visits"] += 1
        found += len(record["name"])
        if step % 16 == 0:
            record["tags"] = [i, f"new-{step}"]
    ordered = sorted(records.values(), key=lambda record: (record["name"], record["id"]))
    print(found, ordered[0]["id"], ordered[len(ordered) // 2]["id"])
    del ordered
    for i in range(0, count, 3):
        del records[f"user-{i}"]
    for i in range(0, count, 3):
        records[f"again-{i}"] = {"id": -i, "name": f"again {i}", "visits": i % 7, "tags": [i]}
    print(digest(records))


main()
