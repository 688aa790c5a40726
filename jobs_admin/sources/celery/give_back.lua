-- Return messages that a dead worker had fetched to the heads of their queues, in one step: each once, even with
-- concurrent callers.
-- KEYS: `unacked`, `unacked_index`. ARGV: for each message its tag, its list and its element.
-- Returns the number returned.
local count = 0
for i = 1, #ARGV, 3 do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 1 then
    -- First, because it may be refused (no memory, or the key is not a list), which ends the script.
    redis.call('RPUSH', ARGV[i + 1], ARGV[i + 2])
    redis.call('HDEL', KEYS[1], ARGV[i])
    redis.call('ZREM', KEYS[2], ARGV[i])
    count = count + 1
  end
end
return count
