-- Remove dead jobs, each if it is still exactly the known failure. A job that others depend on, or with a rate limit,
-- stays: it could not be restored.
-- ARGV[1] prefix of RQ's keys, ARGV[2] the queue, ARGV[3] maximum size of a job that can be restored; then for each
-- job: its id, and the latest end of the known failure in RQ's form ('': any)
-- Returns a list with 1 (removed) or 0 for each.
local prefix, queue, answers = ARGV[1], ARGV[2], {}

local function size_of(key)
  local size = redis.call('HLEN', key) > 200 and math.huge or 0 -- one that was not read completely
  if size > 0 then
    return size
  end
  for _, name in ipairs(redis.call('HKEYS', key)) do
    size = size + redis.call('HSTRLEN', key, name)
  end
  return size
end

-- An abandoned run has no end, or that of the previous attempt: then its start counts.
local function is_until(key, until_)
  local enqueued, started, ended = unpack(redis.call('HMGET', key, 'enqueued_at', 'started_at', 'ended_at'))
  started, ended = started or '', ended or ''
  if started == '' and ended == '' then
    return (enqueued or '') <= until_
  end
  return started <= until_ and ended <= until_
end

local function may_go(id, until_)
  local key = prefix .. ':job:' .. id
  if redis.call('TYPE', key).ok ~= 'hash' or not redis.call('ZSCORE', prefix .. ':failed:' .. queue, id) then
    return false
  end
  local status, limit, origin = unpack(redis.call('HMGET', key, 'status', 'rate_limit_key', 'origin'))
  return (status == 'failed' or status == 'stopped') and (not origin or origin == '' or origin == queue) and (until_ == '' or is_until(key, until_))
    and (not limit or limit == '') and redis.call('EXISTS', key .. ':dependents') == 0
    and redis.call('HEXISTS', key, 'data') == 1 and size_of(key) <= tonumber(ARGV[3])
end

local is_sound = redis.call('TYPE', prefix .. ':failed:' .. queue).ok == 'zset'
for i = 4, #ARGV, 2 do
  local id, answer = ARGV[i], 0
  if is_sound and may_go(id, ARGV[i + 1]) then
    redis.call('ZREM', prefix .. ':failed:' .. queue, id)
    redis.call('DEL', prefix .. ':job:' .. id, prefix .. ':results:' .. id)
    answer = 1
  end
  answers[#answers + 1] = answer
end
return answers
