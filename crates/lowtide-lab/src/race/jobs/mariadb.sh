#!/bin/sh
# DIRECTORY ROWS EVENTS: MariaDB with all rows in memory; 16 workers read and change them in so many transactions of 20 statements.
# The time of the workers goes to standard error.
set -e
directory=$1 rows=$2 events=$3
data=$directory/mariadb
rm -rf "$data"
mkdir -p "$data"
mariadb-install-db --no-defaults --datadir="$data" --user="$(id -un)" --auth-root-authentication-method=normal --skip-test-db >/dev/null
# No page cache, and nobody waits for the disk: the database's own memory is what swap is for.
mariadbd --no-defaults --user="$(id -un)" --datadir="$data" --socket="$data/socket" --skip-networking --skip-log-bin --pid-file="$data/pid" \
	--innodb-buffer-pool-size=1G --innodb-flush-method=O_DIRECT --innodb-flush-log-at-trx-commit=0 --innodb-doublewrite=0 \
	--innodb-log-file-size=512M --innodb-max-dirty-pages-pct=99 --innodb-buffer-pool-dump-at-shutdown=0 >"$data/log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null || :; wait $server 2>/dev/null || :; rm -rf "$data"' EXIT
sql() { mariadb --no-defaults --socket="$data/socket" --user=root --batch --skip-column-names "$@"; }
until sql -e 'SELECT 1' >/dev/null 2>&1; do
	kill -0 $server || { tail -n 1 "$data/log" >&2; exit 1; }
	sleep 0.1
done
sql -e 'CREATE DATABASE sbtest'
workers() {
	sysbench oltp_read_write --db-driver=mysql --mysql-socket="$data/socket" --mysql-user=root --tables=4 --table-size=$((rows / 4)) \
		--rand-type=uniform "$@" >"$data/workers" || { tail -n 1 "$data/workers" >&2; exit 1; }
}
workers --threads=4 prepare
began=$(date +%s.%N)
workers --threads=16 --events="$events" --time=0 run
ended=$(date +%s.%N)
sql -e 'SELECT COUNT(*), MIN(id) FROM sbtest1; CHECK TABLE sbtest1, sbtest2, sbtest3, sbtest4 EXTENDED' sbtest
awk "BEGIN { print \"seconds\", $ended - $began }" >&2
