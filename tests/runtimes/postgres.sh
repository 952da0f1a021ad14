#!/bin/sh
# A server of its own, run as the user postgres: a sort in memory, an index, changes to some rows, a checksum.
# postgres.sh DIRECTORY
set -e
PATH=$(echo /usr/lib/postgresql/*/bin | tr ' ' '\n' | tail -1):$PATH
dir=$1
rm -rf "$dir"
mkdir -p "$dir"
chown postgres "$dir"
as="setpriv --reuid=postgres --regid=postgres --clear-groups"
cd "$dir"
$as initdb -D "$dir/data" -A trust --no-sync --locale=C >/dev/null
$as postgres -D "$dir/data" -k "$dir" -c listen_addresses= -c fsync=off -c max_parallel_workers_per_gather=0 -c jit=off \
	-c shared_buffers=32MB -c logging_collector=off 2>"$dir/log" &
server=$!
trap 'kill -INT $server; wait $server || true; rm -rf "$dir"' EXIT
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
	psql -h "$dir" -U postgres -c 'SELECT 1' >/dev/null 2>&1 && break
	sleep 0.5
done
psql -h "$dir" -U postgres -qAt -v ON_ERROR_STOP=1 <<'SQL'
SET work_mem = '600MB';
CREATE TEMP TABLE t AS SELECT i AS id, i::bigint * 7919 % 1000003 AS n, 'a text of row ' || i::bigint * 7919 AS text FROM generate_series(1, 1200000) i;
UPDATE t SET text = text || '!' WHERE n % 40 = 7;
SELECT 'OK', sum(r * (n % 97)), sum(length(text)) FROM (SELECT n, text, row_number() OVER (ORDER BY text) AS r FROM t) s;
SELECT count(*), sum(c) FROM (SELECT n, count(*) AS c, array_agg(text) FROM t GROUP BY n) s;
SQL
