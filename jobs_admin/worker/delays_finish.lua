-- What was claimed is where it belongs, or is given back: each only where it is still the caller's.
-- KEYS[1] due, KEYS[2] due:jobs, KEYS[3] due:claims
-- ARGV[1] whose they are, ARGV[2] `done` or `back`, ARGV[3…] members
-- Answers how many were.
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local ours = 0
for at = 3, #ARGV do
  local member = ARGV[at]
  if redis.call('HGET', KEYS[3], member) == ARGV[1] then
    redis.call('HDEL', KEYS[3], member)
    if ARGV[2] == 'done' then
      redis.call('ZREM', KEYS[1], member)
      redis.call('HDEL', KEYS[2], member)
    else
      redis.call('ZADD', KEYS[1], 'XX', now, member)
    end
    ours = ours + 1
  end
end
return ours
