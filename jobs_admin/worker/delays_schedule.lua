-- Let one job wait for its time, once.
-- KEYS[1] due, KEYS[2] due:jobs, KEYS[3] due:claims
-- ARGV[1] the job's member, ARGV[2] delay in ms, ARGV[3] entry (a line of JSON, then the message), ARGV[4] most that may wait
-- ARGV[5], ARGV[6], where they are given: the broker's unacknowledged deliveries, and the tag of this one, which must be there
-- Answers 1 (it waits), 0 (it waited already, or this delivery was taken back), -1 (too many wait).
if ARGV[5] and redis.call('HEXISTS', ARGV[5], ARGV[6]) == 0 then
  return 0
end
local is_there = redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1
if is_there and redis.call('HEXISTS', KEYS[3], ARGV[1]) == 0 then
  return 0
end
if not is_there and redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[4]) then
  return -1
end
-- By this server's clock, here and where it is promoted: workers' clocks differ.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[1])
-- Somebody is about to say that it is on its queue, and it was: a worker had it, and lets it wait again (no place was free).
-- What waits now is another entry, which is not theirs to remove.
redis.call('HDEL', KEYS[3], ARGV[1])
return 1
