-- Take one replay's messages out of a stretch of one queue list, and note in the ledger that they are back.
-- KEYS[1] ledger of the replay, KEYS[2] queue list, KEYS[3] removals (keys.removals)
-- ARGV[1] seconds that the records live, ARGV[2] what stands before the token in a message of this replay,
-- ARGV[3] where to begin, counted from the newest, ARGV[4] the removals known to the caller ('' at the beginning),
-- ARGV[5] the most messages to look at, ARGV[6] the bytes after which to stop
-- Answers where to go on (-1 at the end), the removals now, and the tokens taken back.
local kind = redis.call('TYPE', KEYS[2]).ok
-- First, as it takes no memory: after a write a script is let finish, so that a Redis which is full can be emptied.
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
-- New jobs only push the rest on, so that some are looked at twice. Who takes jobs out behind us (another recall, and
-- our own last call) pulls it back: without this some would be passed over.
local at = tonumber(ARGV[3])
if ARGV[4] ~= '' then
  at = math.max(0, at - (removals - tonumber(ARGV[4])))
end
local length, bytes, tokens, places = redis.call('LLEN', KEYS[2]), 0, {}, {}
local stop = math.min(length, at + tonumber(ARGV[5]))
while at < stop and bytes < tonumber(ARGV[6]) do
  -- A few at a time: a message may be of 16 MB.
  local page = redis.call('LRANGE', KEYS[2], at, math.min(stop, at + 10) - 1)
  for i, message in ipairs(page) do
    bytes = bytes + #message
    local _, last = string.find(message, ARGV[2], 1, true)
    local token = last and string.match(message, '^(%d+)"', last + 1)
    -- What a worker had and put back may have begun to run.
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
    -- Redis walks to it from the nearer end only when told which one that is.
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
