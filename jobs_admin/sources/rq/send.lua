-- Send one batch of jobs to RQ: each token once, its record and its action in one step. A job is changed as by RQ's own
-- `requeue` (1.16, 2.12 and 3.0) and rate limit (3.0, `rate_limit.py`).
-- KEYS[1] ledger of the replay
-- ARGV[1] lifetime of the ledger in seconds, ARGV[2] schema, ARGV[3] prefix of RQ's keys, ARGV[4] now (seconds),
-- ARGV[5] now in RQ's form, ARGV[6] number of messages; then for each: token, queue, job id, lineage (JSON), '=' and
-- its data ('' keeps it), why the job may not be absent ('' if it may), number of fields, and their names and values
-- Returns a list with 1 (sent), 0 (already) or -1 (withheld) for each message. If one is refused, nothing is written,
-- and the error names them.
local ledger, schema, prefix, now, stamp = KEYS[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local letters, at = {}, 7
for n = 1, tonumber(ARGV[6]) do
  local letter = {
    token = ARGV[at], queue = ARGV[at + 1], id = ARGV[at + 2], lineage = ARGV[at + 3], data = ARGV[at + 4],
    why_not_absent = ARGV[at + 5], fields = {},
  }
  local count = tonumber(ARGV[at + 6]) * 2
  for i = 1, count do
    letter.fields[i] = ARGV[at + 6 + i]
    if i % 2 == 0 and letter.fields[i - 1] == 'rate_limit_key' then
      letter.limit = letter.fields[i]
    end
  end
  at = at + 7 + count
  letter.key, letter.failed = prefix .. ':job:' .. letter.id, prefix .. ':failed:' .. letter.queue
  letters[n] = letter
end

local function is_sound(letter)
  local limit = redis.call('HGET', letter.key, 'rate_limit_key') or letter.limit
  local base = prefix .. ':rl:' .. (limit or '')
  return is_of(letter.failed, 'zset') and is_of(prefix .. ':queue:' .. letter.queue, 'list') and is_of(prefix .. ':queues', 'set')
    and is_of(prefix .. ':results:' .. letter.id, 'stream')
    and (not limit or is_of(base, 'hash') and is_of(base .. ':allowed', 'zset') and is_of(base .. ':rate_limited', 'zset')
      and is_of(prefix .. ':rl-keys', 'set'))
end

local function why_not(letter)
  local kind = redis.call('TYPE', letter.key).ok
  if kind ~= 'none' and kind ~= 'hash' then
    return 'no-job'
  elseif not is_sound(letter) then
    return 'keys'
  end
  local status = kind == 'hash' and redis.call('HGET', letter.key, 'status') or ''
  local origin = kind == 'hash' and redis.call('HGET', letter.key, 'origin') or ''
  if origin ~= '' and origin ~= letter.queue then
    return 'elsewhere'
  end
  local is_failed = redis.call('ZSCORE', letter.failed, letter.id)
  if status == 'failed' or status == 'stopped' then
    return not is_failed and 'moving' or nil
  -- RQ dropped it, or nearly: a late heartbeat leaves one field. Any action removes it from the list
  elseif status == '' then
    return not is_failed and letter.why_not_absent ~= '' and letter.why_not_absent or nil
  end
  return (status == 'finished' or status == 'canceled') and status or 'waits'
end

local answers, refusal = check(ledger, schema, letters, why_not)
if refusal then
  return refusal
end

-- Move jobs of one limit to their queues as RQ 3 does, oldest first, while there are free slots.
local function promote(limit, concurrency)
  local base = prefix .. ':rl:' .. limit
  redis.call('SADD', prefix .. ':rl-keys', limit)
  redis.call('HSET', base, 'concurrency', concurrency)
  while redis.call('ZCARD', base .. ':allowed') < tonumber(concurrency) do
    local next = redis.call('ZRANGE', base .. ':rate_limited', 0, 0)[1]
    if not next then
      return
    end
    local key, origin, status, in_front = prefix .. ':job:' .. next, nil, nil, nil
    if redis.call('TYPE', key).ok == 'hash' then
      origin, status, in_front = unpack(redis.call('HMGET', key, 'origin', 'status', 'enqueue_at_front'))
    end
    if origin and status == 'rate_limited' then
      if not is_of(prefix .. ':queue:' .. origin, 'list') then
        return -- it keeps waiting: no job leaves this list without being in the other
      end
      redis.call(in_front == '1' and 'LPUSH' or 'RPUSH', prefix .. ':queue:' .. origin, next)
      redis.call('ZADD', base .. ':allowed', now, next)
      redis.call('HSET', key, 'status', 'queued', 'enqueued_at', stamp)
    end
    redis.call('ZREM', base .. ':rate_limited', next)
  end
end

local function limit_of(letter)
  local limit, concurrency = unpack(redis.call('HMGET', letter.key, 'rate_limit_key', 'rate_limit_concurrency'))
  if limit and limit ~= '' and concurrency and string.match(concurrency, '^%d+$') and tonumber(concurrency) > 0 then
    return limit, concurrency
  end
end

-- Write everything the job needs; its place in the queue last.
local function put(letter)
  for i = 1, letter.is_partial and #letter.fields or 0, 2 do
    if redis.call('HEXISTS', letter.key, letter.fields[i]) == 0 then
      redis.call('HSET', letter.key, letter.fields[i], letter.fields[i + 1])
    end
  end
  local ttl, limit = redis.call('HGET', letter.key, 'ttl'), limit_of(letter)
  for _, one in ipairs({letter.key, letter.key .. ':dependents', prefix .. ':job::' .. letter.id .. ':dependencies'}) do
    redis.call('PERSIST', one)
    if ttl and #ttl <= 10 and string.match(ttl, '^[1-9]%d*$') then
      redis.call('EXPIRE', one, ttl)
    end
  end
  redis.call('SADD', prefix .. ':queues', prefix .. ':queue:' .. letter.queue)
  if limit then
    redis.call('ZADD', prefix .. ':rl:' .. limit .. ':rate_limited', now, letter.id)
  else
    redis.call('RPUSH', prefix .. ':queue:' .. letter.queue, letter.id)
  end
end

local function note(letter, last)
  local key, limit, concurrency = letter.key, limit_of(letter)
  if letter.data ~= '' then
    redis.call('HSET', key, 'data', string.sub(letter.data, 2))
  end
  local made, left, returned = unpack(redis.call('HMGET', key, 'created_at', 'retries_left', 'number_of_retries'))
  redis.call('HSET', key, 'redrive', cjson.encode({
    lineage = letter.lineage, made = made or '', after = last[1] and last[1][1] or '0-0', left = left or '', returned = returned or '',
  }), 'started_at', '', 'ended_at', '', 'origin', letter.queue, 'enqueued_at', stamp, 'status', limit and 'rate_limited' or 'queued')
  redis.call('HDEL', key, 'exc_info')
  redis.call('ZREM', letter.failed, letter.id)
  if limit then
    redis.call('HSET', key, 'enqueue_at_front', '0')
    promote(limit, concurrency)
  end
end

for n, letter in ipairs(letters) do
  if answers[n] == 1 then
    local last = redis.call('XREVRANGE', prefix .. ':results:' .. letter.id, '+', '-', 'COUNT', 1)
    local was_there = redis.call('EXISTS', letter.key) == 1
    letter.is_partial = redis.call('HEXISTS', letter.key, 'data') == 0
    -- Recorded before the action: once in its queue, it is never sent a second time.
    redis.call('HSET', ledger, letter.token, schema)
    local is_put, why = pcall(put, letter)
    if not is_put then
      redis.call('HDEL', ledger, letter.token)
      if not was_there then
        redis.call('DEL', letter.key)
      end
      return redis.error_reply(type(why) == 'table' and why.err or tostring(why))
    end
    note(letter, last)
  end
end
redis.call('EXPIRE', ledger, ARGV[1])
return answers
