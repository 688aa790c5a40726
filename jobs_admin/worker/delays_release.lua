-- Make jobs on hold by a breaker due now: only those unchanged since they were read, and not claimed.
-- KEYS[1] due, KEYS[2] due:jobs, KEYS[3] due:claims, KEYS[4] the breaker's index, KEYS[5] its latest places, KEYS[6]
-- breakers with jobs on hold
-- ARGV[1] the breaker, then for each job its member, the SHA-1 of its entry, and the entry to release it with
-- Returns the number released, and the number that were missing.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local went, gone = 0, 0
for at = 2, #ARGV, 3 do
  local member = ARGV[at]
  local entry, place = redis.call('HGET', KEYS[2], member), redis.call('ZSCORE', KEYS[4], member)
  local head = head_of(entry)
  if not place or not head or head.index ~= KEYS[4] then
    redis.call('ZREM', KEYS[4], member)
    gone = gone + 1
  elseif redis.sha1hex(entry) == ARGV[at + 1] and redis.call('HEXISTS', KEYS[3], member) == 0 then
    redis.call('ZREM', KEYS[4], member)
    -- Jobs put on hold from now on come after it.
    local rank = math.floor(place / RANK)
    redis.call('HSET', KEYS[5], rank .. ':', string.format('%.0f', place - rank * RANK))
    redis.call('HSET', KEYS[2], member, ARGV[at + 2])
    -- In this order, even within a millisecond.
    redis.call('ZADD', KEYS[1], string.format('%.3f', now - 1 + went / 1000), member)
    went = went + 1
  end
end
if redis.call('EXISTS', KEYS[4]) == 0 then
  redis.call('DEL', KEYS[5])
  redis.call('SREM', KEYS[6], ARGV[1])
end
return {went, gone}
