-- Tables in a table: passes, jumps with changes, a checksum. For Lua and LuaJIT.
local count, all, by_text = 700000, {}, {}
for i = 1, count do
  -- Equal strings are one, and the table that knows them all is jumped about in: only some are different.
  local text = i % 16 == 0 and "n" .. i * 79 or "some text"
  all[i] = { number = i, text = text }
  if i % 16 == 0 then by_text[text] = all[i] end
end
local state, sum = 1, 0
for k = 1, 60000 do
  state = (state * 69069 + 1) % 4294967296
  local item = all[math.floor(state / 16) % count + 1]
  item.number = item.number + k
end
for _ = 1, 2 do
  for i = 1, count do sum = (sum * 3 + all[i].number + #all[i].text) % 4294967296 end
end
for i = 16, count, 16 do sum = (sum * 3 + by_text["n" .. i * 79].number) % 4294967296 end
print(string.format("OK %.0f", sum))
