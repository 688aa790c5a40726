-- Send one batch of dead letters: each token once, its record and its action in one step. A message is put on its queue
-- as by the `enqueue` of Dramatiq's own script, and removed from the dead-letter queue.
-- KEYS[1] ledger of the replay
-- ARGV[1] lifetime of the ledger in seconds, ARGV[2] mark of sent tokens, ARGV[3] namespace, ARGV[4] hash of recent
-- sends, ARGV[5] its lifetime in seconds, ARGV[6] number of messages; then for each: token, queue, message id, its name
-- in the dead-letter queue, its new name, message, why it may not be absent ('' if it may), record
-- Returns a list with 1 (sent), 0 (already) or -1 (withheld) for each. If one is refused, nothing is written, and the
-- error names them.
local ledger, mark, namespace, sent = KEYS[1], ARGV[2], ARGV[3], ARGV[4]
local messages = {}
for n = 1, tonumber(ARGV[6]) do
  local at = 7 + (n - 1) * 8
  local queue = namespace .. ':' .. ARGV[at + 1]
  messages[n] = {
    token = ARGV[at], name = ARGV[at + 1], queue = queue, dead = queue .. '.XQ', id = ARGV[at + 2], was = ARGV[at + 3], now = ARGV[at + 4],
    body = ARGV[at + 5], why_not_absent = ARGV[at + 6], record = ARGV[at + 7],
  }
end

local function why_not(message)
  if not (is_of(message.queue, 'list') and is_of(message.queue .. '.msgs', 'hash') and is_of(message.dead, 'zset')
    and is_of(message.dead .. '.msgs', 'hash') and is_of(sent, 'hash')) then
    return 'keys'
  elseif not redis.call('ZSCORE', message.dead, message.was) and message.why_not_absent ~= '' then
    return message.why_not_absent
  end
end

local answers, refusal = check(ledger, mark, messages, why_not)
if refusal then
  return refusal
end

local function put(message)
  redis.call('HSET', sent, message.name .. '\n' .. message.id, message.record)
  redis.call('HSET', message.queue .. '.msgs', message.now, message.body)
  redis.call('RPUSH', message.queue, message.now)
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
      redis.call('HDEL', message.queue .. '.msgs', message.now)
      return redis.error_reply(type(why) == 'table' and why.err or tostring(why))
    end
    redis.call('ZREM', message.dead, message.was)
    redis.call('HDEL', message.dead .. '.msgs', message.was)
  end
end
redis.call('EXPIRE', ledger, ARGV[1])
redis.call('EXPIRE', sent, ARGV[5])
return answers
