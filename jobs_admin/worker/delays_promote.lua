-- Move due jobs to their queues: each once, with any number of callers.
-- KEYS[1] due, KEYS[2] due:jobs, KEYS[3] due:claims
-- ARGV[1] minimum ms overdue, ARGV[2] maximum of jobs, ARGV[3] bytes after which to stop
-- Returns the number moved, and the ms until the next is due (-1: none waits).
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local late = tonumber(ARGV[1])

-- Return a job's head if it leads to a queue, else nil.
local function way_of(entry)
  local head = head_of(entry)
  if not head or type(head.list) ~= 'string' then
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
  local head = entry and way_of(entry)
  if entry and not head then
    -- Unreadable, or not a queue: checked again in a minute, so that it does not block others.
    redis.call('ZADD', KEYS[1], string.format('%.0f', now + 60000), member)
  else
    -- Removals first, because after a write a script may finish: a full Redis can be emptied.
    redis.call('ZREM', KEYS[1], member)
    redis.call('HDEL', KEYS[2], member)
    redis.call('HDEL', KEYS[3], member)
    unhold(entry, member)
  end
  if head then
    if head.tag then
      -- Remove the failed delivery, in case its worker died before acknowledging it: it would be redelivered. If these
      -- keys have another type, that may happen; an error here would lose the job, which is nowhere at this point.
      redis.pcall('ZREM', head.unacked_index, head.tag)
      redis.pcall('HDEL', head.unacked, head.tag)
    end
    redis.call(head.is_probe and 'RPUSH' or 'LPUSH', head.list, string.sub(entry, string.find(entry, '\n', 1, true) + 1))
    went, bytes = went + 1, bytes + #entry
  end
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if not first[2] then
  return {went, -1}
end
return {went, math.max(0, tonumber(first[2]) + late - now)}
