<?php
// Arrays of arrays, by number and by text: passes, jumps with changes, a checksum.
ini_set('memory_limit', '-1');
$count = 500000;
$all = [];
$by_text = [];
for ($i = 0; $i < $count; $i++) {
    $all[] = ['number' => $i, 'text' => 'n' . $i * 7919];
    if ($i % 2 == 0) $by_text['key ' . $i * 3] = $i;
}
$state = 1;
$sum = 0;
for ($k = 0; $k < 60000; $k++) {
    $state = ($state * 69069 + 1) & 0xffffffff;
    $all[($state >> 4) % $count]['number'] += $k;
}
for ($pass = 0; $pass < 2; $pass++)
    foreach ($all as $item) $sum = ($sum * 3 + $item['number'] + strlen($item['text'])) & 0xffffffff;
foreach ($by_text as $key => $i) $sum = ($sum * 3 + strlen($key) + $i) & 0xffffffff;
echo "OK $sum\n";
