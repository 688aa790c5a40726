-- Store a job that is about to be acknowledged and run, with the report to file if its worker dies.
-- KEYS[1] boots that store jobs, [2] jobs that this boot stores, [3] all boots, [4] its boot
-- ARGV[1] boot, [2] the job, [3] its report, [4] '1' if the broker redelivers it, [5] prefix of all jobs stored by this
-- source's boots, [6] this worker's limit of the stream of reports in bytes
-- Returns 'kept'
local time = redis.call('TIME')
local now = math.floor((time[1] * 1000000 + time[2]) / 1000)
if ARGV[4] == '1' then
  -- Its worker died between this call and the acknowledgement: the broker redelivered it, so it is not lost.
  for _, boot in ipairs(redis.call('SMEMBERS', KEYS[1])) do
    redis.call('HDEL', ARGV[5] .. boot, ARGV[2])
  end
end
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], KEPT_MS)
redis.call('HSET', KEYS[2], ARGV[2], now .. ' ' .. ARGV[3])
redis.call('PEXPIRE', KEYS[2], KEPT_MS)
if redis.call('HSETNX', KEYS[4], 'stream', ARGV[6]) == 1 then
  redis.call('PEXPIRE', KEYS[4], KEPT_MS)
end
-- A worker that dies before its first beat is recorded as alive now.
if redis.call('ZADD', KEYS[3], 'NX', now, ARGV[1]) == 1 then
  redis.call('PEXPIRE', KEYS[3], KEPT_MS)
end
return 'kept'
