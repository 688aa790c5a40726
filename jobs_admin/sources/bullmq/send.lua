-- Send one batch of jobs to BullMQ: each token once, its record and its action in one step. `sending.lua` and BullMQ's
-- own scripts of one major version, as functions bullmq_reprocessJob and bullmq_changePriority, precede this text. Major
-- 3 is Bull 3 and 4, with `rights.lua` and Bull's own reprocessJob.
-- KEYS[1] ledger of the replay, KEYS[2] locations of copies in dead-letter queues (`dead_letters.py`)
-- ARGV[1] lifetime of the ledger and of records in seconds, ARGV[2] schema, ARGV[3] now (ms), ARGV[4] number of
-- messages, ARGV[5] prefix of all keys; then for each: token, base of its queue's keys, job id, key of its record,
-- lineage (JSON), retries counted as made ('' keeps them), priority ('' keeps it), '=' and its data ('' keeps it), 'R'
-- or 'L' (lifo), base and id of the dead-letter copy it was read from, and its creation time (or ''), its name in
-- KEYS[2], '1' if its queue may have no settings yet (Bull: if the job may be absent), number of fields, and their names and values
-- Returns a list with 1 (sent), 0 (already) or -1 (withheld) for each message. If one is refused, nothing is written,
-- and the error names them.
local ledger, schema, major, now = KEYS[1], ARGV[2], bullmq_major, ARGV[3]
local letters, at = {}, 6
local is_bull = major == 3
for n = 1, tonumber(ARGV[4]) do
  local letter = {
    token = ARGV[at], base = ARGV[at + 1], id = ARGV[at + 2], sent = ARGV[at + 3], lineage = ARGV[at + 4], retries = ARGV[at + 5],
    priority = ARGV[at + 6], data = ARGV[at + 7], push = ARGV[at + 8], copy = ARGV[at + 9], copied = ARGV[at + 10],
    copy_made = ARGV[at + 11], copies = ARGV[at + 12], may_be_new = ARGV[at + 13] == '1', fields = {},
  }
  local count = tonumber(ARGV[at + 14]) * 2
  for i = 1, count do
    letter.fields[i] = ARGV[at + 14 + i]
  end
  at = at + 15 + count
  letters[n] = letter
end

local function field(letter, name)
  for i = 1, #letter.fields, 2 do
    if letter.fields[i] == name then
      return letter.fields[i + 1]
    end
  end
end

local function state(letter)
  for _, one in ipairs({'completed', 'delayed', 'prioritized', 'waiting-children'}) do
    if redis.call('ZSCORE', letter.base .. one, letter.id) then
      return one
    end
  end
  return 'waiting'
end

-- An error in the middle of BullMQ's own scripts would leave a job in no list. So everything they use is checked first:
-- types of keys, and numbers.
local TYPES = {
  meta = 'hash', events = 'stream', failed = 'zset', wait = 'list', paused = 'list', active = 'list', marker = 'zset', prioritized = 'zset',
  completed = 'zset', delayed = 'zset', ['waiting-children'] = 'zset', pc = 'string', id = 'string',
}

local function finite(said)
  local n = tonumber(said)
  return n and n == n and math.abs(n) < 9007199254740992 and n or nil
end

local function is_whole(said)
  return not said or string.match(said, '^%d+$') and finite(said)
end

local sound = {}  -- base of a queue's keys -> '', or why nothing can be sent there

local function why_unsound(base)
  if is_bull then
    local settings = redis.call('HLEN', base .. 'meta') - redis.call('HEXISTS', base .. 'meta', 'paused')
    if settings > 0 or redis.call('EXISTS', base .. 'events', base .. 'marker', base .. 'prioritized') > 0 then
      return 'bull'
    end
    local why = why_no_right(base)
    if why then
      -- A full or read-only server, of which its own words say what it is.
      return string.find(why, 'NOPERM', 1, true) and 'rights' or error(why, 0)
    end
  end
  for name, wanted in pairs(TYPES) do
    if not is_of(base .. name, wanted) then
      return 'keys'
    end
  end
  for _, name in ipairs({'pc', 'id'}) do
    if not is_whole(redis.call('GET', base .. name)) then
      return 'keys'
    end
  end
  for _, said in ipairs(redis.call('HMGET', base .. 'meta', 'opts.maxLenEvents', 'concurrency')) do
    if not is_whole(said) then
      return 'keys'
    end
  end
  return ''
end

local function why_unfit(letter, key)
  local priority = letter.priority
  if priority == '' then
    priority = redis.call('HGET', key, 'priority') or field(letter, 'priority') or '0'
  end
  local n = finite(priority)
  if not n or n < 0 or n > 2097152 then
    return 'priority'
  end
  local parent = redis.call('HGET', key, 'parentKey') or field(letter, 'parentKey')
  if parent and redis.call('EXISTS', parent) == 1 then
    local is_sound = is_of(parent .. ':unsuccessful', 'zset') and is_of(parent .. ':failed', 'hash') and is_of(parent .. ':dependencies', 'set')
    return not is_sound and 'parent' or nil
  end
end

local function why_not(letter)
  if not sound[letter.base] then
    sound[letter.base] = why_unsound(letter.base)
  end
  if sound[letter.base] ~= '' then
    return sound[letter.base]
  elseif not is_bull and not letter.may_be_new and redis.call('EXISTS', letter.base .. 'meta') == 0 then
    return 'no-queue'
  end
  local version = not is_bull and redis.call('HGET', letter.base .. 'meta', 'version')
  if version and tonumber(string.match(version, '^bullmq:(%d+)%.') or '0') ~= major then
    return 'version'
  end
  local key = letter.base .. letter.id
  local kind = redis.call('TYPE', key).ok
  if is_bull and kind == 'none' and not letter.may_be_new then
    return 'absent'
  elseif is_bull and redis.call('EXISTS', key .. ':lock') == 1 then
    return 'locked'
  elseif kind == 'none' then
    return #letter.fields == 0 and 'lost' or not field(letter, 'name') and 'nameless' or why_unfit(letter, key)
  elseif kind ~= 'hash' then
    return 'no-job'
  end
  local made = redis.call('HGET', key, 'timestamp')
  if made and field(letter, 'timestamp') and made ~= field(letter, 'timestamp') then
    return 'another'
  end
  if not redis.call('ZSCORE', letter.base .. 'failed', letter.id) then
    return state(letter)
  end
  return why_unfit(letter, key)
end

if not is_of(KEYS[2], 'hash') then
  return redis.error_reply('WRONGTYPE ' .. KEYS[2] .. ' is no hash: nothing was sent')
end
local answers, refusal = check(ledger, schema, letters, why_not)
if refusal then
  return refusal
end

-- Restore the job from our copy. A queue that restarted its counter (its data was lost) must not give this id to
-- another job: BullMQ would treat that one as a repetition and drop it.
local function put_back(letter, key)
  redis.call('HSET', key, unpack(letter.fields))
  redis.call('HSETNX', key, 'timestamp', now)  -- which a dead letter may lack
  redis.call('ZADD', letter.base .. 'failed', now, letter.id)
  if string.match(letter.id, '^[1-9]%d*$') and #letter.id < 16 then
    if tonumber(redis.call('GET', letter.base .. 'id') or '0') < tonumber(letter.id) then
      redis.call('SET', letter.base .. 'id', letter.id)
    end
  end
end

local function reprocess(letter, key)
  local base, fresh = letter.base, letter.retries ~= '' and '1' or '0'
  local told = {letter.id, letter.push .. 'PUSH', 'failedReason', 'failed', fresh, fresh}
  local keys
  if is_bull then
    told = {letter.id, letter.push .. 'PUSH', 'redrive', now}
    keys = {key, key .. ':lock', base .. 'failed', base .. 'wait', base .. 'meta-paused', base .. 'paused'}
  elseif major == 4 then
    keys = {key, base .. 'events', base .. 'failed', base .. 'wait', base .. 'meta', base .. 'paused'}
  elseif major == 5 then
    keys = {key, base .. 'events', base .. 'failed', base .. 'wait', base .. 'meta', base .. 'paused', base .. 'active', base .. 'marker'}
  else
    keys = {
      key, base .. 'events', base .. 'failed', base .. 'wait', base .. 'meta', base .. 'active', base .. 'marker',
      base .. 'prioritized', base .. 'pc',
    }
  end
  return bullmq_reprocessJob(keys, told)
end

-- Before 6, a job is added without priority, even if it has one.
local function give_priority(letter, key)
  local base, priority = letter.base, redis.call('HGET', key, 'priority') or '0'
  if not is_bull and major < 6 and tonumber(priority) ~= 0 then
    local lifo = letter.push == 'R' and '1' or '0'
    if major == 4 then
      bullmq_changePriority(
        {base .. 'wait', base .. 'paused', base .. 'meta', base .. 'prioritized', base .. 'pc'}, {priority, key, letter.id, lifo})
    else
      bullmq_changePriority(
        {base .. 'wait', base .. 'paused', base .. 'meta', base .. 'prioritized', base .. 'active', base .. 'pc', base .. 'marker'},
        {priority, base, letter.id, lifo})
    end
  end
end

local function stacks(key)
  local well, read = pcall(cjson.decode, redis.call('HGET', key, 'stacktrace') or '[]')
  return well and type(read) == 'table' and #read or 0
end

-- Remove from the nearer end of the list: in a queue whose jobs only wait, ids increase towards its head. BullMQ's own
-- script searches all of it, which takes milliseconds with a million jobs.
local function take_from(list, id)
  local head, tail, place = redis.pcall('LINDEX', list, 0), redis.pcall('LINDEX', list, -1), tonumber(id)
  head, tail = type(head) == 'string' and tonumber(head), type(tail) == 'string' and tonumber(tail)
  local is_near_head = head and tail and place and head - place < place - tail
  return redis.pcall('LREM', list, is_near_head and 1 or -1, id) == 1
end

-- Remove a copy, if its creation time is unknown or equal: another dead letter with its id stays.
local function remove_copy(base, id, made)
  local key, from = base .. id, nil
  if redis.call('TYPE', key).ok ~= 'hash' or redis.call('EXISTS', key .. ':lock') == 1 then
    return
  elseif made ~= '' and redis.call('HGET', key, 'timestamp') ~= made then
    return
  end
  for _, list in ipairs({'wait', 'paused'}) do
    from = from or take_from(base .. list, id) and list
  end
  for _, set in ipairs({'prioritized', 'delayed', 'failed', 'completed'}) do
    from = from or redis.pcall('ZREM', base .. set, id) == 1 and set
  end
  if from then
    redis.call('DEL', key, key .. ':logs', key .. ':dependencies', key .. ':processed', key .. ':failed', key .. ':unsuccessful')
    redis.pcall('XADD', base .. 'events', 'MAXLEN', '~', 10000, '*', 'event', 'removed', 'jobId', id, 'prev', from)
  end
end

-- Remove all known copies: several processes may watch a queue for failures, and each leaves one.
local function remove_copies(letter)
  if letter.copy ~= '' then
    remove_copy(letter.copy, letter.copied, letter.copy_made)
  end
  for line in string.gmatch(redis.call('HGET', KEYS[2], letter.copies) or '', '[^\n]+') do
    local known, copy = pcall(cjson.decode, line)
    if known and type(copy) == 'table' and type(copy[1]) == 'string' and type(copy[2]) == 'string' then
      remove_copy(ARGV[5] .. ':' .. copy[1] .. ':', copy[2], type(copy[3]) == 'string' and copy[3] or '')
    end
  end
  redis.call('HDEL', KEYS[2], letter.copies)
end

for n, letter in ipairs(letters) do
  if answers[n] == 1 then
    local key, made = letter.base .. letter.id, major <= 4 and 'attemptsMade' or 'atm'
    -- Earlier executions do not count in this run.
    local before = letter.retries ~= '' and letter.retries or redis.call('HGET', key, made)
    local record = '{"lineage":' .. letter.lineage .. ',"made":' .. string.format('%.0f', finite(before) or 0) .. ',"stacks":' .. stacks(key)
      .. ',"at":' .. now .. '}'
    redis.call('SET', letter.sent, record, 'EX', ARGV[1])
    -- Recorded before the action: after any failure from here on, it is never sent a second time.
    redis.call('HSET', ledger, letter.token, schema)
    if is_bull then
      redis.call('DEL', letter.sent .. ':removed')  -- of `remove.lua`: what happens from now on is not known there
    end
    if redis.call('EXISTS', key) == 0 then
      put_back(letter, key)
    end
    redis.call('HSET', key, 'redrive', record)
    if letter.priority ~= '' then
      redis.call('HSET', key, 'priority', letter.priority)
    end
    if letter.data ~= '' then
      redis.call('HSET', key, 'data', string.sub(letter.data, 2))
    end
    reprocess(letter, key)
    if letter.retries ~= '' then
      redis.call('HSET', key, made, letter.retries)
    end
    give_priority(letter, key)
    remove_copies(letter)
  end
end
redis.call('EXPIRE', ledger, ARGV[1])
return answers
