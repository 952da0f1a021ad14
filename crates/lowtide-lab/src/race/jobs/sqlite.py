"""SQLite in memory: a table with an index, point queries and updates of which some rows get most, a sum over all. sqlite.py ROWS REQUESTS"""

import random
import sqlite3
import sys


def text(i: int, version: int) -> str:
    numbers = random.Random(i * 1000 + version)
    return f"customer {i} of branch {i % 97}, version {version}; " + "".join(f"order {numbers.getrandbits(40):010x} shipped; " for _ in range(8))


def main() -> None:
    rows, requests = int(sys.argv[1]), int(sys.argv[2])
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.execute("PRAGMA journal_mode = OFF")
    db.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, balance INTEGER NOT NULL, note TEXT NOT NULL)")
    # The same few hundred notes over and over would pack to nothing: each row's number is in it.
    notes = [text(i, 0) for i in range(512)]
    values = ((i, f"name-{i * 7919 % 1000003:07d}", i % 1000, f"{i:08d} {notes[i * 31 % 512]}") for i in range(rows))
    db.execute("BEGIN")
    db.executemany("INSERT INTO customers VALUES (?, ?, ?, ?)", values)
    db.execute("CREATE INDEX by_name ON customers (name)")
    db.execute("COMMIT")
    numbers, seen = random.Random(5), 0
    for request in range(requests):
        # Squared: the first quarter of the rows gets half of the requests. Multiplied: those rows are no neighbours.
        i = int(numbers.random() ** 2 * rows) * 7919 % rows
        if request % 4 == 0:
            db.execute("UPDATE customers SET balance = balance + ?, note = ? WHERE id = ?", (request, f"{i:08d} {notes[request % 512]}", i))
        elif request % 4 == 1:
            row = db.execute("SELECT balance, note FROM customers WHERE name = ?", (f"name-{i * 7919 % 1000003:07d}",)).fetchone()
            seen += row[0] + len(row[1])
        else:
            row = db.execute("SELECT balance, note FROM customers WHERE id = ?", (i,)).fetchone()
            assert row[1].startswith(f"{i:08d} "), (i, row)
            seen += row[0] + len(row[1])
    print(seen, *db.execute("SELECT count(*), sum(balance), sum(length(note)), sum(unicode(substr(note, 60)) * (id % 101)) FROM customers").fetchone())


main()
