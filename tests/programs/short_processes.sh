#!/bin/sh
# Many short processes, as scripts have them: short_processes.sh DIRECTORY ROUNDS. Each round starts eight programs and some subshells.
mkdir -p "$1" && cd "$1" || exit 1
seq 1 20000 >numbers
round=0
while [ $round -lt "$2" ]; do
	sed -e 's/1/x/g' -e 's/\(.\)9/\19y/g' numbers >edited
	sort -r edited >sorted
	grep -c x sorted
	awk '{ sum += length($0) * NR } END { print sum }' sorted
	found=$(cut -c 2-3 sorted | uniq -c | tail -n 1)
	echo "$round $found" | tr a-z A-Z
	cksum <sorted
	round=$((round + 1))
done
echo OK
