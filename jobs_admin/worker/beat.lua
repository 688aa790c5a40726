-- A worker lives, or leaves. KEYS[1] all boots, [2] its boot, [3] what it holds
-- ARGV[1] boot, [2] worker's name, [3] host, [4] '' or 'leaving' (told to end) or 'gone' (ended, nothing runs any more),
-- [5…] tokens whose processes are no more
-- Answers how many workers of the source live, how many places of this one were given to others while their jobs ran, and then
-- the tokens that hold a place, or began a counted job of which no end was told
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
  -- Its end was never told, so it would run for ever, and hold up its job where one crash more convicts. Should it have been
  -- a crash after all, the worker tells of that, and it counts as one whose start was not seen.
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
