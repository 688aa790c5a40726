-- Claim jobs for a time, so that no one else promotes them: for queues in another broker, and for `drain`.
-- KEYS[1] due, KEYS[2] due:jobs, KEYS[3] due:claims
-- ARGV[1] `due`: only jobs due for ARGV[4] ms; `all`: also those not yet due, except others' claims
-- ARGV[2] maximum of jobs, ARGV[3] duration of the claim in ms: they are due again after it, ARGV[5] id of the claim
-- Returns the ms until the next is due (-1: none), then member and entry of each.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local latest = ARGV[1] == 'all' and '+inf' or string.format('%.0f', now - ARGV[4])
local most = tonumber(ARGV[2])
-- Enough to have some left besides all claimed ones, of which there are at most some hundreds.
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', latest, 'WITHSCORES', 'LIMIT', 0, most + redis.call('HLEN', KEYS[3]))
local answer = {-1}
for at = 1, #found, 2 do
  local member, until_ = found[at], tonumber(found[at + 1])
  local entry = redis.call('HGET', KEYS[2], member)
  if not entry then
    redis.call('ZREM', KEYS[1], member)
    redis.call('HDEL', KEYS[3], member)
  elseif until_ <= now or redis.call('HEXISTS', KEYS[3], member) == 0 then
    redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[3]), member)
    redis.call('HSET', KEYS[3], member, ARGV[5])
    answer[#answer + 1] = member
    answer[#answer + 1] = entry
    if #answer > 2 * most then
      break
    end
  end
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if first[2] then
  answer[1] = math.max(0, tonumber(first[2]) + ARGV[4] - now)
end
return answer
