-- For SQLite in memory: rows, an index, a sort, changes to some rows, a checksum.
CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, text TEXT);
WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 900000)
  INSERT INTO t SELECT i, (i * 7919) % 1000003, 'a text of row ' || (i * 7919) || ' that is neither short nor long' FROM c;
CREATE INDEX by_n ON t (n);
UPDATE t SET text = text || '!' WHERE n % 40 = 7;
SELECT 'OK', sum(n * (id % 97)), sum(length(text)) FROM t;
SELECT count(*), min(text) FROM (SELECT text FROM t WHERE n BETWEEN 100000 AND 130000 ORDER BY text);
