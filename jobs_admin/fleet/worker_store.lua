-- The fields of hashes, of each as far as the bounds go; of what is no hash, none.
-- KEYS: the hashes. ARGV[1] most fields of one, [2] most bytes of one
-- Answers for each: field, value, …
local all = {}
for at, key in ipairs(KEYS) do
  local found, bytes, cursor = {}, 0, '0'
  repeat
    if redis.call('TYPE', key).ok ~= 'hash' then
      break
    end
    local page = redis.call('HSCAN', key, cursor, 'COUNT', 100)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      bytes = bytes + #page[2][i] + #page[2][i + 1]
      if #found >= 2 * ARGV[1] or bytes > tonumber(ARGV[2]) then
        cursor = '0'
        break
      end
      found[#found + 1] = page[2][i]
      found[#found + 1] = page[2][i + 1]
    end
  until cursor == '0'
  all[at] = found
end
return all
