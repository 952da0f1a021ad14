"""DuckDB in memory: a table, an aggregate over a join, a sort, a checksum."""

import duckdb

db = duckdb.connect()
db.sql("SET threads = 2")
db.sql("CREATE TABLE t AS SELECT i AS id, i * 7919 % 1000003 AS n, 'text ' || i * 7919 AS text FROM range(4000000) r(i)")
print("OK", db.sql("SELECT sum(n * (id % 97)), sum(length(text)) FROM t").fetchall())
print(db.sql("SELECT count(*), sum(a.id % 1000 + b.n) FROM t a JOIN t b ON a.n = b.n AND a.id % 7 = b.id % 5").fetchall())
print(db.sql("SELECT sum(k * (r % 89)) FROM (SELECT n AS k, row_number() OVER (ORDER BY n, id) AS r FROM t)").fetchall())
