-- Replace a breaker's document if it still has the number that was read.
-- KEYS[1] breakers of the source
-- ARGV[1] the breaker, [2] the number that was read (0: none), [3] `NUMBER JSON`, [4] maximum of breakers
-- Returns 1 (done), -1 (too many breakers), or the current value.
local value = redis.call('HGET', KEYS[1], ARGV[1])
if not value and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then
  return -1
end
if value and string.match(value, '^%d+') ~= ARGV[2] and string.match(value, '^%d+ ') then
  return value
end
-- First, because a full Redis refuses a script whose first write takes memory.
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
