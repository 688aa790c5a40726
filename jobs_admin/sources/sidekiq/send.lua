-- Retry one batch of dead jobs: each token once, its record and its action in one step. A job is put on its queue as by
-- `Sidekiq::Client`, and removed from the dead set.
-- KEYS[1] ledger of the replay
-- ARGV[1] lifetime of the ledger in seconds, ARGV[2] mark of sent tokens, ARGV[3] dead set, ARGV[4] set of queues,
-- ARGV[5] number of jobs; then for each: token, list of its queue, name of its queue, job in the dead set, job to push,
-- why it may not be absent ('' if it may)
-- Returns a list with 1 (sent), 0 (already) or -1 (withheld) for each. If one is refused, nothing is written, and the
-- error names them.
local ledger, mark, dead, queues = KEYS[1], ARGV[2], ARGV[3], ARGV[4]
local messages = {}
for n = 1, tonumber(ARGV[5]) do
  local at = 6 + (n - 1) * 6
  messages[n] = {
    token = ARGV[at], list = ARGV[at + 1], queue = ARGV[at + 2], was = ARGV[at + 3], job = ARGV[at + 4], why_not_absent = ARGV[at + 5],
  }
end

local function why_not(message)
  if not (is_of(message.list, 'list') and is_of(queues, 'set') and is_of(dead, 'zset')) then
    return 'keys'
  elseif not redis.call('ZSCORE', dead, message.was) and message.why_not_absent ~= '' then
    return message.why_not_absent
  end
end

local answers, refusal = check(ledger, mark, messages, why_not)
if refusal then
  return refusal
end

-- Move a job from the dead set to its queue. Whatever the server refuses, the job is never in both, and never in neither.
local function put(message)
  redis.call('SADD', queues, message.queue)
  local score = redis.call('ZSCORE', dead, message.was)
  if score then
    redis.call('ZADD', dead, 'XX', score, message.was) -- changes nothing: it can be put back
    redis.call('ZREM', dead, message.was)
  end
  local is_pushed, why = pcall(redis.call, 'LPUSH', message.list, message.job)
  if not is_pushed then
    if score then
      redis.call('ZADD', dead, score, message.was)
    end
    error(why, 0)
  end
end

for n, message in ipairs(messages) do
  -- A token that occurs twice in a batch was recorded meanwhile.
  if answers[n] == 1 and redis.call('HGET', ledger, message.token) then
    answers[n] = 0
  elseif answers[n] == 1 then
    -- Recorded before the action: once on its queue, it is never sent a second time.
    redis.call('HSET', ledger, message.token, mark)
    local is_put, why = pcall(put, message)
    if not is_put then
      redis.call('HDEL', ledger, message.token)
      return redis.error_reply(type(why) == 'table' and why.err or tostring(why))
    end
  end
end
redis.call('EXPIRE', ledger, ARGV[1])
return answers
