-- Reports that are filed leave the stream, and its count of bytes: each once, however many processes filed it.
-- KEYS: the stream; how many bytes it holds. ARGV: the group; then, for each report, its id and its bytes.
-- Answers how many left now.
local left, bytes = 0, 0
for at = 2, #ARGV, 2 do
    redis.call('XACK', KEYS[1], ARGV[1], ARGV[at])
    if redis.call('XDEL', KEYS[1], ARGV[at]) == 1 then
        left, bytes = left + 1, bytes + tonumber(ARGV[at + 1])
    end
end
if bytes > 0 then
    count_on(KEYS[2], -bytes)
end
return left
