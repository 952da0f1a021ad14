#!/bin/sh
# A server without a network, fed with statements: InnoDB's own buffer pool, an index, changes to some rows, a checksum.
# mariadb.sh DIRECTORY
set -e
dir=$1
rm -rf "$dir"
mkdir -p "$dir/data"
trap 'rm -rf "$dir"' EXIT
mariadbd --no-defaults --bootstrap --user=root --datadir="$dir/data" --skip-grant-tables --innodb-buffer-pool-size=256M \
	--innodb-flush-log-at-trx-commit=0 --innodb-flush-method=O_DIRECT --tmp-table-size=128M --max-heap-table-size=128M 2>"$dir/log" <<SQL
CREATE DATABASE job;
USE job;
CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, n INT, words VARCHAR(100)) ENGINE=InnoDB;
INSERT INTO t (n) VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10);
INSERT INTO t (n) SELECT a.n FROM t a, t b, t c, t d, t e WHERE e.id <= 8;
UPDATE t SET n = id * 7919 % 1000003, words = CONCAT('a text of row ', id * 7919, ' that is neither short nor long');
CREATE INDEX by_n ON t (n);
UPDATE t SET words = CONCAT(words, '!') WHERE n % 40 = 7;
SELECT 'OK', SUM(n * (id % 97)), SUM(LENGTH(words)), COUNT(*) FROM t INTO OUTFILE '$dir/one';
SELECT COUNT(*), MIN(words), SUM(n) FROM (SELECT n, words FROM t FORCE INDEX (by_n) WHERE n BETWEEN 100000 AND 150000) s INTO OUTFILE '$dir/two';
SQL
cat "$dir/one" "$dir/two"
