-- A job is about to be acknowledged and run: what will be told should its worker die is kept meanwhile.
-- KEYS[1] all places, [2] what this boot keeps, [3] all boots, [4] its boot
-- ARGV[1] this place, [2] boot, [3] the job, [4] its report, [5] '1' where the broker gives it once more, [6] prefix of all
-- that the boots of this source keep, [7] the source and a slash, [8] bytes that the stream of reports may hold by this worker
-- Answers 'kept'
local time = redis.call('TIME')
local now = math.floor((time[1] * 1000000 + time[2]) / 1000)
if ARGV[5] == '1' then
  -- Its worker died between this and the acknowledgement: the broker gave it again, so it is not lost.
  for _, place in ipairs(redis.call('SMEMBERS', KEYS[1])) do
    if string.sub(place, 1, #ARGV[7]) == ARGV[7] then
      redis.call('HDEL', ARGV[6] .. string.sub(place, #ARGV[7] + 1), ARGV[3])
    end
  end
end
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], KEPT_MS)
redis.call('HSET', KEYS[2], ARGV[3], now .. ' ' .. ARGV[4])
redis.call('PEXPIRE', KEYS[2], KEPT_MS)
if redis.call('HSETNX', KEYS[4], 'stream', ARGV[8]) == 1 then
  redis.call('PEXPIRE', KEYS[4], KEPT_MS)
end
-- A worker that dies before its first sign is known to have lived now.
if redis.call('ZADD', KEYS[3], 'NX', now, ARGV[2]) == 1 then
  redis.call('PEXPIRE', KEYS[3], KEPT_MS)
end
return 'kept'
