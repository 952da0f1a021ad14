"""A database of SQLite in memory, written, indexed, changed and read: sqlite_rows.py ROWS. Prints what it finds, and the digest of all rows."""

import hashlib
import sqlite3
import sys

rows = int(sys.argv[1])
db = sqlite3.connect(":memory:")
db.execute("create table t (id integer primary key, name text, data blob)")
db.executemany(
    "insert into t values (?, ?, ?)",
    ((i, f"name-{i * 7919 % rows}", hashlib.sha256(str(i).encode()).digest() * 8) for i in range(rows)),
)
db.execute("create index by_name on t (name)")
db.execute("update t set data = cast(data || data as blob) where id % 5 = 0")
db.execute("delete from t where id % 11 = 3")
found = sum(db.execute("select id from t where name = ?", (f"name-{i}",)).fetchone() is not None for i in range(0, rows, 30))
digest = hashlib.md5()
for row in db.execute("select * from t order by id"):
    digest.update(repr(row).encode())
assert db.execute("pragma integrity_check").fetchone() == ("ok",)
print("OK", found, digest.hexdigest())
