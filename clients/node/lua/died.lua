-- The last words of a process that ends without having been told to: nobody need wait for its silence to be sure.
-- KEYS[1] all boots. ARGV[1] boot
local time = redis.call('TIME')
local now = math.floor((time[1] * 1000000 + time[2]) / 1000)
return redis.call('ZADD', KEYS[1], 'XX', now - SILENT_MS - 1, ARGV[1])
