# Vectors, strings and a list: sorts, jumps with changes, a checksum.
n <- 4000000
x <- (seq_len(n) * 7919) %% 1000003
o <- order(x)
y <- x[o] + rev(x)
words <- paste0("w", seq_len(400000))
all <- lapply(seq_len(300000), function(i) c(i, i * 2, i * 3))
state <- 1
for (k in 1:60000) {
  state <- (state * 69069 + 1) %% 4294967296
  i <- (state %/% 16) %% 300000 + 1
  all[[i]][1] <- all[[i]][1] + k
}
cat("OK", format(sum(y * (seq_len(n) %% 97)), digits = 15), sum(nchar(words)), format(sum(unlist(all)), digits = 15), "\n")
