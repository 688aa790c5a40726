-- Take jobs for a while, so that nobody else promotes them: for queues that are not in this Redis, and for `drain`.
-- KEYS[1] due, KEYS[2] due:jobs
-- ARGV[1] `due`: only those that are due for ARGV[4] ms; `all`: also those that are not yet due
-- ARGV[2] most jobs, ARGV[3] ms for which they are taken: then they are due again
-- Answers the ms until the next is due (-1: none), then member and entry of each.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local latest = ARGV[1] == 'all' and '+inf' or string.format('%.0f', now - ARGV[4])
local answer = {-1}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', latest, 'LIMIT', 0, ARGV[2])) do
  local entry = redis.call('HGET', KEYS[2], member)
  if entry then
    redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[3]), member)
    answer[#answer + 1] = member
    answer[#answer + 1] = entry
  else
    redis.call('ZREM', KEYS[1], member)
  end
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if first[2] then
  answer[1] = math.max(0, tonumber(first[2]) + ARGV[4] - now)
end
return answer
