-- Read messages of a hash in turn, within bounds.
-- ARGV[1] the hash, ARGV[2] cursor, ARGV[3] maximum bytes of a message that is read, ARGV[4] bytes and ARGV[5] messages
-- after which to stop
-- Returns the next cursor, bytes read, and names and messages.
local cursor, largest, most_bytes, most = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local found, bytes = {}, 0
repeat
  local page = redis.call('HSCAN', ARGV[1], cursor, 'COUNT', 1)
  cursor = page[1]
  for i = 1, #page[2], 2 do
    bytes = bytes + #page[2][i + 1] + 200
    if #page[2][i + 1] <= largest then
      found[#found + 1] = page[2][i]
      found[#found + 1] = page[2][i + 1]
    end
  end
  most = most - 1 -- also counts an empty part of the hash
until cursor == '0' or bytes >= most_bytes or most <= 0
return {cursor, bytes, found}
