-- Shared part of the scripts below: the sorted set in which a breaker's jobs on hold wait for their release, beside
-- `due`.
local RANK = 1099511627776 -- 2^40: more jobs than are ever on hold with one priority

-- Return the head of an entry; nil if it cannot be parsed.
local function head_of(entry)
  local line = entry and string.find(entry, '\n', 1, true)
  local ok, head = pcall(cjson.decode, line and string.sub(entry, 1, line - 1) or '')
  return ok and type(head) == 'table' and head or nil
end

-- Remove a job from its breaker's index: it is due, or on hold elsewhere. Nothing is removed from a key of another
-- type. If the job is put on hold again, it gets its place back.
local function unhold(entry, member)
  local head = head_of(entry)
  if head and type(head.index) == 'string' then
    local place = redis.pcall('ZSCORE', head.index, member)
    if redis.pcall('ZREM', head.index, member) == 1 and type(place) == 'string' then
      redis.pcall('HSET', head.index .. ':places', 'm:' .. member, place)
    end
  end
end

local GONE_MS = 120000 -- time for which a call may be repeated after its job has left

-- Record that the job has left for its queue: calls with its idempotency key no longer add it.
local function note_gone(gone, entry, now)
  local head = head_of(entry)
  if head and type(head.idempotency_key) == 'string' then
    redis.call('ZADD', gone, string.format('%.0f', now), head.idempotency_key)
    redis.call('PEXPIRE', gone, GONE_MS)
  end
end
