-- Make delayed jobs due now, except claimed ones.
-- KEYS[1] due, KEYS[2] due:jobs, KEYS[3] due:claims
-- ARGV members
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, member in ipairs(ARGV) do
  local score = redis.call('ZSCORE', KEYS[1], member) -- none: it was promoted meanwhile, and does not return
  if score and not (tonumber(score) > now and redis.call('HEXISTS', KEYS[3], member) == 1) then
    redis.call('ZADD', KEYS[1], 0, member)
  end
end
