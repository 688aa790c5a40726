-- Reports -> the stream, all of them or none: as one step, so that however many workers write, it never holds more than its bound.
-- KEYS: the stream; how many bytes it holds. ARGV: the bound; the bytes of these reports; then, for each report, how many
-- arguments it has, and those (field, value, …).
-- Answers 1; 0 where there is no room: then nothing was written. A stream that is empty takes anything, else what is larger
-- than the bound would keep all behind it waiting for ever.
local held = 0
if redis.call('XLEN', KEYS[1]) > 0 then
    held = counted(KEYS[2])
    if not held then -- nobody counted: it was filled by workers of an older version, or the count was deleted or is none
        held = redis.call('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', 100)
    end
    if held + tonumber(ARGV[2]) > tonumber(ARGV[1]) then
        return 0
    end
end
local at = 3
while at <= #ARGV do
    local last = at + tonumber(ARGV[at])
    redis.call('XADD', KEYS[1], '*', unpack(ARGV, at + 1, last))
    at = last + 1
end
redis.call('SET', KEYS[2], string.format('%.0f', held + tonumber(ARGV[2])))
return 1
