% Matrices and a cell array: products, jumps with changes, a checksum.
n = 2500;
a = mod (reshape (1:n*n, n, n) * 7919, 10007);
b = a' + 1;
c = a(:, 1:40)' * b;
s = sort (a(:));
all = cell (1, 150000);
for i = 1:numel (all)
  all{i} = [i, i * 2, i * 3];
end
state = 1;
for k = 1:30000
  state = mod (state * 69069 + 1, 4294967296);
  i = mod (floor (state / 16), numel (all)) + 1;
  all{i}(1) += k;
end
printf ("OK %.0f %.0f %.0f\n", sum (c(:)), sum (s .* mod ((1:n*n)', 97)), sum (cellfun (@sum, all)));
