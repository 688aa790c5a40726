-- Messages that a dead worker had fetched -> the heads of their queues, in one step: each once, whoever else puts it back.
-- KEYS: `unacked`, `unacked_index`. ARGV: for each message its tag, its list and its element. Answers how many were put back.
local count = 0
for i = 1, #ARGV, 3 do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 1 then
    -- First, since it may be refused (no memory is left, the key is no list), which ends the script.
    redis.call('RPUSH', ARGV[i + 1], ARGV[i + 2])
    redis.call('HDEL', KEYS[1], ARGV[i])
    redis.call('ZREM', KEYS[2], ARGV[i])
    count = count + 1
  end
end
return count
