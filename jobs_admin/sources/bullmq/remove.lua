-- Remove jobs with BullMQ's own script, if each is still in one of these states and still the same job: another may
-- have its id meanwhile. BullMQ's own scripts of one major version precede this text.
-- KEYS[1] base of the queue's keys, KEYS[2] (Bull) text before a job's id in the key of our record; ARGV[1] number of states, these (`failed`, `wait` …), then three values for each
-- job: its id, the ms up to which it may have failed, and its creation time by its hash ("" in either: any)
-- A job of a flow stays, because it could not be restored: BullMQ lets a parent run once its last child is removed, and
-- drops a parent's children's results with it.
-- Returns a list with 1 (removed) or 0 (missing, another job, part of a flow, or locked) for each id.
local base, states, answers = KEYS[1], {}, {}
for i = 1, tonumber(ARGV[1]) do
  states[i] = ARGV[1 + i]
end

-- Bull's own script searches all lists for the id, which takes milliseconds with 100,000 waiting. The job is in `failed`:
-- it is in no list. Our record is the evidence for `send.lua` that nobody else removed it.
local REMOVED_S = 30 * 86400
local function remove_from_bull(id)
  local key = base .. id
  if redis.call('EXISTS', key .. ':lock') == 1 then
    return 0
  end
  redis.call('SET', KEYS[2] .. id .. ':removed', redis.call('HGET', key, 'timestamp') or '', 'EX', REMOVED_S)
  local debounced = redis.call('HGET', key, 'deid')
  redis.call('ZREM', base .. 'failed', id)
  redis.pcall('ZREM', base .. 'priority', id)
  redis.call('DEL', key, key .. ':logs', debounced and base .. 'de:' .. debounced or key)
  return 1
end

local function is_in(state, id)
  local kind = redis.call('TYPE', base .. state).ok
  if kind == 'zset' then
    return redis.call('ZSCORE', base .. state, id)
  end
  return kind == 'list' and redis.call('LPOS', base .. state, id)
end

local function is_the_same(id, failed_until, made)
  if made ~= '' and redis.call('HGET', base .. id, 'timestamp') ~= made then
    return false
  end
  if failed_until == '' then
    return true
  end
  local failed = is_in('failed', id)
  return failed and tonumber(failed) <= tonumber(failed_until)
end

local function is_of_a_flow(id)
  local key = base .. id
  return redis.call('HEXISTS', key, 'parentKey') == 1
    or redis.call('EXISTS', key .. ':dependencies', key .. ':processed', key .. ':failed', key .. ':unsuccessful') > 0
end

local no_right = bullmq_major == 3 and why_no_right(base)
if no_right then
  return redis.error_reply(no_right)
end
for i = 2 + #states, #ARGV, 3 do
  local id, found, answer = ARGV[i], false, 0
  for _, state in ipairs(states) do
    found = found or is_in(state, id)
  end
  if found and is_the_same(id, ARGV[i + 1], ARGV[i + 2]) and not is_of_a_flow(id) then
    if bullmq_major == 3 then
      answer = remove_from_bull(id)
    elseif bullmq_major == 4 then
      answer = bullmq_removeJob({base}, {id, '0'})
    else
      answer = bullmq_removeJob({base .. id, base .. 'repeat'}, {id, '0', base})
    end
  end
  answers[#answers + 1] = answer == 1 and 1 or 0
end
return answers
