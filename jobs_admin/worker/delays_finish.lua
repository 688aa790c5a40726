-- Finish claims: jobs have reached their destination, or are returned; only those that still belong to the claim.
-- KEYS[1] due, KEYS[2] due:jobs, KEYS[3] due:claims, KEYS[4] due:gone
-- ARGV[1] id of the claim, ARGV[2] `done` or `back`, ARGV[3…] members
-- Returns their number.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ours = 0
redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', string.format('%.0f', now - GONE_MS))
for at = 3, #ARGV do
  local member = ARGV[at]
  if redis.call('HGET', KEYS[3], member) == ARGV[1] then
    redis.call('HDEL', KEYS[3], member)
    if ARGV[2] == 'done' then
      local entry = redis.call('HGET', KEYS[2], member)
      note_gone(KEYS[4], entry, now)
      unhold(entry, member)
      redis.call('ZREM', KEYS[1], member)
      redis.call('HDEL', KEYS[2], member)
    else
      redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', now), member)
    end
    ours = ours + 1
  end
end
return ours
