# Hashes and arrays of strings: passes, jumps with changes, a checksum.
use strict;
use warnings;
my $count = 400000;
my @all = map { { number => $_, text => "n" . $_ * 7919 } } 0 .. $count - 1;
my %by_text = map { $all[$_ * 8]{text} => $all[$_ * 8] } 0 .. ($count - 1) / 8;
my ($state, $sum) = (1, 0);
for my $k (1 .. 60000) {
	$state = ($state * 69069 + 1) % 4294967296;
	$all[($state >> 4) % $count]{number} += $k;
}
for my $pass (1 .. 2) {
	$sum = ($sum * 3 + $_->{number} + length $_->{text}) % 4294967296 for @all;
}
$sum = ($sum * 3 + $by_text{"n" . $_ * 7919}{number}) % 4294967296 for map { $_ * 8 } 0 .. ($count - 1) / 8;
print "OK $sum\n";
