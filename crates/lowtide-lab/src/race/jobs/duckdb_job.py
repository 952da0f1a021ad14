"""DuckDB in memory: tables, a join with an aggregate, a sort in a window, updates. duckdb_job.py ROWS"""

import sys

import duckdb

rows = int(sys.argv[1])
db = duckdb.connect()
# With two threads it takes a fifth more memory in one run than in the next.
db.sql("SET threads = 1")
# It would take its limit from the cgroup's, and write to files of its own there.
db.sql("SET memory_limit = '4GB'")
db.sql("SET temp_directory = ''")
db.sql(f"CREATE TABLE orders AS SELECT i AS id, i * 7919 % 1000003 AS customer, i * 31 % 977 AS amount, 'order ' || i * 7919 AS note FROM range({rows}) r(i)")
db.sql("CREATE TABLE customers AS SELECT i AS id, 'customer ' || i * 31 AS name, i % 25 AS country FROM range(1000003) r(i)")
for repeat in range(3):
    joined = "FROM orders JOIN customers ON orders.customer = customers.id"
    print(db.sql(f"SELECT country, count(*), sum(amount), sum(length(name || note)) {joined} WHERE amount > {repeat * 100} GROUP BY country ORDER BY country").fetchall())
    print(db.sql("SELECT sum(amount * (r % 89)) FROM (SELECT amount, row_number() OVER (ORDER BY customer, amount, id) AS r FROM orders)").fetchall())
    db.sql(f"UPDATE orders SET amount = amount + 1 WHERE id % 5 = {repeat}")
print(db.sql("SELECT customer % 1000, sum(amount), max(note) FROM orders GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 20").fetchall())
