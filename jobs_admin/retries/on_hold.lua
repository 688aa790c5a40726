-- Heads of jobs that a breaker holds, without their messages: all, or one at random of each equal part of their order.
-- KEYS[1] the breaker's index, KEYS[2] due:jobs; ARGV[1] most heads
-- Answers how many it holds, then the heads.
local count = redis.call('ZCARD', KEYS[1])
local most = math.min(count, tonumber(ARGV[1]))
local found = {count}
for n = 0, most - 1 do
  local rank = most == count and n or math.floor((n + math.random()) * count / most)
  local member = redis.call('ZRANGE', KEYS[1], rank, rank)[1]
  local entry = member and redis.call('HGET', KEYS[2], member)
  if entry then
    found[#found + 1] = string.sub(string.match(entry, '^[^\n]*'), 1, 4096)
  end
end
return found
