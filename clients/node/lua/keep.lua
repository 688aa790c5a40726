-- A job that is about to fail for good, and that BullMQ may forget then, is kept whole until the desk has read it.
-- KEYS[1] the job's hash, [2] where it is kept, [3] all that are kept, [4] how many bytes these are
-- ARGV[1] its name among them, [2] how many may be kept, [3] bytes of them, [4] seconds, [5…] fields as they will be (name, value, …)
-- Answers 1; 0 where there is no room, or no such job.
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[2]) then
  return 0
end
if tonumber(redis.call('GET', KEYS[4]) or '0') >= tonumber(ARGV[3]) then
  return 0
end
local all, fields, bytes = redis.call('HGETALL', KEYS[1]), {}, 0
for i = 1, #all, 2 do
  fields[all[i]] = all[i + 1]
end
for i = 5, #ARGV, 2 do
  fields[ARGV[i]] = ARGV[i + 1]
end
-- One of this id that nobody has read yet makes way.
local before = tonumber(redis.call('HGET', KEYS[2], 'keptBytes') or '0')
redis.call('DEL', KEYS[2])
for name, value in pairs(fields) do
  bytes = bytes + #name + #value
  redis.call('HSET', KEYS[2], name, value)
end
redis.call('HSET', KEYS[2], 'keptBytes', bytes)
redis.call('EXPIRE', KEYS[2], ARGV[4])
redis.call('ZADD', KEYS[3], redis.call('TIME')[1], ARGV[1])
redis.call('EXPIRE', KEYS[3], ARGV[4])
redis.call('INCRBY', KEYS[4], bytes - before)
redis.call('EXPIRE', KEYS[4], ARGV[4])
return 1
