"""The example of the README: some 380 MiB of small Python strings, made and then read."""

rows = [str(i) * 20 for i in range(2_000_000)]
print(sum(len(row) + ord(row[-1]) for row in rows))
