-- Record that a worker is alive, or leaves.
-- KEYS[1] all boots, [2] its boot, [3] its slots
-- ARGV[1] boot, [2] worker's name, [3] host, [4] '' or 'leaving' (ordered to shut down) or 'gone' (ended, nothing
-- runs), [5…] tokens whose processes have ended
-- Returns the number of live workers of the source, the number of this worker's slots given to others while their jobs
-- ran, then the tokens that hold a slot or started a counted job without a reported end
local time = redis.call('TIME')
local now = math.floor((time[1] * 1000000 + time[2]) / 1000)
redis.call('ZADD', KEYS[1], ARGV[4] == 'gone' and now - SILENT_MS - 1 or now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - KEPT_MS)
redis.call('PEXPIRE', KEYS[1], KEPT_MS)
redis.call('HSET', KEYS[2], 'worker', ARGV[2], 'host', ARGV[3])
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[2], ARGV[4] == 'gone' and 'gone' or 'leaving', '1', 'leaving', '1')
end
redis.call('PEXPIRE', KEYS[2], KEPT_MS)
for i = 5, #ARGV do
  drop(KEYS[3], ARGV[i])
  -- Its end was never reported, so it would count as running forever, and block its job when one more crash convicts
  -- it. If it was a crash after all, the worker reports that, and it counts as one whose start was not seen.
  forget_last(KEYS[2], ARGV[i])
  redis.call('HDEL', KEYS[2] .. ':running', ARGV[i])
end
local open, overrun = renew(KEYS[3], now)
note_overrun(KEYS[2], overrun)
for _, token in ipairs(redis.call('HKEYS', KEYS[2] .. ':running')) do
  open[#open + 1] = token
end
local lives = redis.call('ZCOUNT', KEYS[1], now - SILENT_MS, '+inf')
return { tostring(lives), redis.call('HGET', KEYS[2], 'overrun') or '0', unpack(open) }
