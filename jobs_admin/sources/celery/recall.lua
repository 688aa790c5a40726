-- Recall one replay's messages from a section of a queue list, and record that in the ledger.
-- KEYS[1] ledger of the replay, KEYS[2] queue list, KEYS[3] removals (keys.removals)
-- ARGV[1] lifetime of the records in seconds, ARGV[2] text before the token in this replay's messages, ARGV[3] start,
-- counted from the latest message, ARGV[4] removals known to the caller ('' at the start), ARGV[5] maximum of messages
-- to check, ARGV[6] bytes after which to stop
-- Returns the next start (-1 at the end), the removals now, and the recalled tokens.
local kind = redis.call('TYPE', KEYS[2]).ok
-- First, because it takes no memory: after a write a script may finish, so that a full Redis can be emptied.
redis.call('EXPIRE', KEYS[1], ARGV[1])
redis.call('HSETNX', KEYS[1], 'recalled', '1')
local held = redis.call('HGET', KEYS[3], KEYS[2])
if held and (#held > 15 or not string.match(held, '^%d+$')) then
  redis.call('HDEL', KEYS[3], KEYS[2])
  held = nil
end
local removals = tonumber(held or '0')
if kind ~= 'list' then
  return {-1, removals, {}}
end
-- New jobs push the rest back, so that some are checked twice. Callers that remove jobs before this position (another
-- recall, and our own last call) pull it forward: without this correction, some would be skipped.
local at = tonumber(ARGV[3])
if ARGV[4] ~= '' then
  at = math.max(0, at - (removals - tonumber(ARGV[4])))
end
local length, bytes, tokens, places = redis.call('LLEN', KEYS[2]), 0, {}, {}
local stop = math.min(length, at + tonumber(ARGV[5]))
while at < stop and bytes < tonumber(ARGV[6]) do
  -- A few at a time: a message may have 16 MB.
  local page = redis.call('LRANGE', KEYS[2], at, math.min(stop, at + 10) - 1)
  for i, message in ipairs(page) do
    bytes = bytes + #message
    local _, last = string.find(message, ARGV[2], 1, true)
    local token = last and string.match(message, '^(%d+)"', last + 1)
    -- A message that a worker had and returned may have started to run.
    if token and not string.find(message, '"redelivered": true', 1, true) then
      tokens[#tokens + 1] = token
      places[#places + 1] = at + i - 1
    end
  end
  at = at + #page
end
if #tokens > 0 then
  local gone = 'redrive: taken back'
  for i, token in ipairs(tokens) do
    local place = places[i]
    -- Redis only walks from the nearer end if the index names it.
    redis.call('LSET', KEYS[2], place > length / 2 and place - length or place, gone)
    redis.call('HSET', KEYS[1], token, '0')
  end
  redis.call('LREM', KEYS[2], places[1] > length / 2 and -#tokens or #tokens, gone)
  removals = redis.call('HINCRBY', KEYS[3], KEYS[2], #tokens)
  redis.call('EXPIRE', KEYS[3], ARGV[1])
  length = length - #tokens
  at = at - #tokens
end
return {at < length and at or -1, removals, tokens}
