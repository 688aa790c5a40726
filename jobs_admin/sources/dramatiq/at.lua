-- Find dead letters by message and time of death, and remove them if requested.
-- ARGV[1] the dead-letter queue, ARGV[2] '1': remove them, ARGV[3] maximum bytes of a message that is read, ARGV[4]
-- maximum of bytes in total; then for each: message id, time of death (ms), '1' if that is its exact time ('': it died
-- then or later)
-- Returns for each, until the bytes are reached: 1 if it exists (or was removed), 0 if not, 2 if unknown.
local queue, is_removal, largest, most_bytes, answers = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3]), tonumber(ARGV[4]), {}
local MOMENT_MS, MOST, DECODED, END = 2, 200, 262144, 2600
local bytes = 0

-- Return the id of a message; false if it has none, nil if unknown. Its last members are its id and time: only they are
-- decoded, or all of it if their order differs.
local function id_of(message)
  local text = string.match(
    string.sub(message, -END), '^.*"message_id"%s*:%s*"(.*)"%s*,%s*"message_timestamp"%s*:%s*[%d.eE+-]+%s*}%s*$')
  if text then
    local is_text, found = pcall(cjson.decode, '["' .. text .. '"]')
    if is_text and #found == 1 then
      return found[1]
    end
  end
  if #message > DECODED then
    return nil
  end
  local is_json, found = pcall(cjson.decode, message)
  return is_json and type(found) == 'table' and type(found.message_id) == 'string' and found.message_id
end

local function find(id, at, is_exact)
  local names = redis.call('ZRANGEBYSCORE', queue, at - MOMENT_MS, is_exact and at + MOMENT_MS or '+inf', 'LIMIT', 0, MOST)
  local answer = #names == MOST and 2 or 0
  for _, name in ipairs(names) do
    if name == id then
      return 1, name -- its message cannot be read: it is identified by its name in Redis
    end
    local size = redis.call('HSTRLEN', queue .. '.msgs', name)
    if size > largest then
      answer = 2
    elseif size > 0 then
      if bytes > 0 and bytes + size > most_bytes then
        return nil
      end
      bytes = bytes + size
      local found = id_of(redis.call('HGET', queue .. '.msgs', name))
      if found == id then
        return 1, name
      elseif found == nil then
        answer = 2
      end
    end
  end
  return answer
end

for i = 5, #ARGV, 3 do
  local answer, name = find(ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2] == '1')
  if not answer and #answers > 0 then
    break
  end
  answer = answer or 2 -- too many died at that time
  if is_removal and answer == 1 then
    local size = redis.call('HSTRLEN', queue .. '.msgs', name)
    if size == 0 or size > largest then
      answer = 0 -- it could not be restored
    else
      redis.call('ZREM', queue, name)
      redis.call('HDEL', queue .. '.msgs', name)
    end
  end
  answers[#answers + 1] = answer
end
return answers
