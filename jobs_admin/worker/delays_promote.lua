-- Put the jobs that are due on their queues: each once, however many ask for it.
-- KEYS[1] due, KEYS[2] due:jobs, KEYS[3] due:claims
-- ARGV[1] only those that are due for so many ms, ARGV[2] most jobs, ARGV[3] the bytes after which to stop
-- Answers how many went, and the ms until the next is due (-1: none waits).
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local late = tonumber(ARGV[1])

-- What is known of a job, where that leads to a queue: else nil.
local function head_of(entry)
  local line = string.find(entry, '\n', 1, true)
  local ok, head = pcall(cjson.decode, line and string.sub(entry, 1, line - 1) or '')
  if not ok or type(head) ~= 'table' or type(head.list) ~= 'string' then
    return nil
  end
  local kind = redis.call('TYPE', head.list).ok
  return (kind == 'list' or kind == 'none') and head or nil
end

local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - late), 'LIMIT', 0, ARGV[2])
local went, bytes = 0, 0
for _, member in ipairs(due) do
  if bytes >= tonumber(ARGV[3]) then
    break
  end
  local entry = redis.call('HGET', KEYS[2], member)
  local head = entry and head_of(entry)
  if entry and not head then
    -- Not to be read, or not a queue: looked at again in a minute, so that it holds up no others.
    redis.call('ZADD', KEYS[1], string.format('%.0f', now + 60000), member)
  else
    -- What takes memory comes last: after a write a script is let finish, so a Redis that is full can be emptied.
    redis.call('ZREM', KEYS[1], member)
    redis.call('HDEL', KEYS[2], member)
    redis.call('HDEL', KEYS[3], member)
  end
  if head then
    if head.tag then
      -- The delivery that failed, should its worker have died before it acknowledged it: it would come again. Should these
      -- keys be something else, that may happen; an error here would lose the job, which stands nowhere at this moment.
      redis.pcall('ZREM', head.unacked_index, head.tag)
      redis.pcall('HDEL', head.unacked, head.tag)
    end
    redis.call('LPUSH', head.list, string.sub(entry, string.find(entry, '\n', 1, true) + 1))
    went, bytes = went + 1, bytes + #entry
  end
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if not first[2] then
  return {went, -1}
end
return {went, math.max(0, tonumber(first[2]) + late - now)}
