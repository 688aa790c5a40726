-- Append reports to the stream, all or none, in one step, so that the stream never exceeds its limit with any number of
-- writers.
-- KEYS: the stream; its number of bytes. ARGV: the limit; the bytes of these reports; then for each report, the number
-- of its arguments, and those (field, value, …).
-- Returns 1; 0 if there is no room: then nothing was written. An empty stream accepts anything: otherwise a report
-- larger than the limit would block those behind it forever.
local held = 0
if redis.call('XLEN', KEYS[1]) > 0 then
    held = counted(KEYS[2])
    if not held then -- not counted: filled by workers of an older version, or the count was deleted or is invalid
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
