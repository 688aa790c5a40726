-- Search messages, within bounds, for the wanted ids.
-- ARGV[1] a hash, or a dead-letter queue, ARGV[2] cursor of the hash, or the number of dead letters of that time
-- already read, ARGV[3] '' or the time (ms) from which dead letters are read, ARGV[4] bytes and ARGV[5] messages after
-- which to stop, ARGV[6] maximum bytes of a dead letter that is read, then the wanted ids
-- Returns the ids found, and for a hash the next cursor, for dead letters the number read, the time of the last, and 1
-- if there are more.
local key, since, most_bytes, most, largest = ARGV[1], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local wanted, found, bytes = {}, {}, 0
for i = 7, #ARGV do
  wanted[ARGV[i]] = true
end

-- Return the text that starts there, and its end.
local function read_text(message, from)
  local at = from
  while true do
    local stop = string.find(message, '["\\]', at)
    if not stop then
      return '', #message
    elseif string.sub(message, stop, stop) == '"' then
      local text = string.sub(message, from, stop - 1)
      if string.find(text, '\\', 1, true) then
        local is_text, decoded = pcall(cjson.decode, '["' .. text .. '"]')
        text = is_text and decoded[1] or text
      end
      return text, stop
    end
    at = stop + 2
  end
end

-- An id that is not among the last members of a message belongs to another message inside it.
local function search(message)
  local at, id = 1, nil
  while true do
    local _, stop = string.find(message, '"message_id"%s*:%s*"', at)
    if not stop then
      return
    end
    id, at = read_text(message, stop + 1)
    if wanted[id] then
      found[#found + 1] = id
    end
  end
end

local function search_hash()
  local cursor = ARGV[2]
  repeat
    local page = redis.call('HSCAN', key, cursor, 'COUNT', 1)
    cursor = page[1]
    for i = 2, #page[2], 2 do
      bytes = bytes + #page[2][i] + 200
      search(page[2][i])
    end
    most = most - 1 -- also counts an empty part of the hash
  until cursor == '0' or bytes >= most_bytes or most <= 0
  return {found, cursor}
end

local function search_dead()
  local page = redis.call('ZRANGEBYSCORE', key, since, '+inf', 'WITHSCORES', 'LIMIT', ARGV[2], most)
  local read, last = 0, since
  for i = 1, #page, 2 do
    local size = redis.call('HSTRLEN', key .. '.msgs', page[i])
    if size > largest then
      for id in pairs(wanted) do
        found[#found + 1] = id -- it may be any of them
      end
    elseif size > 0 then
      if read > 0 and bytes + size > most_bytes then
        return {found, read, last, 1}
      end
      bytes = bytes + size
      search(redis.call('HGET', key .. '.msgs', page[i]))
    end
    read, last = read + 1, page[i + 1]
  end
  return {found, read, last, read == most and 1 or 0}
end

return since == '' and search_hash() or search_dead()
