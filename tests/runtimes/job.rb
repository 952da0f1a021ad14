# Objects in an array and in a hash: passes, jumps with changes, a checksum.
Item = Struct.new(:number, :text, :few)
count = 700_000
all = Array.new(count) { |i| Item.new(i, "a text that is long enough for a buffer of its own #{i * 7919}", [i, i + 1, i + 2, i + 3]) }
by_text = {}
all.each_with_index { |item, i| by_text[item.text] = item if i % 4 == 0 }
state, sum = 1, 0
60_000.times do |k|
  state = (state * 69_069 + 1) & 0xffffffff
  all[(state >> 4) % count].number += k
end
2.times { all.each { |item| sum = (sum * 3 + item.number + item.text.size + item.few[2]) & 0xffffffff } }
by_text.each_value { |item| sum = (sum * 3 + item.number) & 0xffffffff }
puts "OK #{sum}"
