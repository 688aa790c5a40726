-- Send one batch: each token once, its record and its push in one step.
-- KEYS[1] ledger of the replay, KEYS[2..] queue lists
-- ARGV[1] lifetime of the ledger in seconds, ARGV[2] schema, then the number of messages for each list; the tokens of
-- the first list, of the second …, and in the same order the messages
-- Returns a list with 1 (sent), 0 (already) or -1 (recalled) for each message.
local lists = #KEYS - 1
local before = 2 + lists
local letters = (#ARGV - before) / 2
for i = 1, lists do
  local kind = redis.call('TYPE', KEYS[i + 1]).ok
  -- Checked before the first write: a later error would leave part of the batch sent.
  if kind ~= 'list' and kind ~= 'none' then
    return redis.error_reply('REDRIVE not-a-queue ' .. KEYS[i + 1])
  end
end
local ledger = redis.call('HMGET', KEYS[1], 'recalled', unpack(ARGV, before + 1, before + letters))
local answers, records, pushes, new, n = {}, {}, {}, {}, 0
for list = 1, lists do
  local push = {}
  for _ = 1, tonumber(ARGV[2 + list]) do
    n = n + 1
    local token, mark = ARGV[before + n], ledger[n + 1]
    if mark == ARGV[2] or new[token] then
      answers[n] = 0
    elseif mark or ledger[1] then
      answers[n] = -1
    else
      answers[n], new[token] = 1, true
      records[#records + 1] = token
      records[#records + 1] = ARGV[2]
      push[#push + 1] = ARGV[before + letters + n]
    end
  end
  pushes[list] = push
end
if #records > 0 then
  redis.call('HSET', KEYS[1], unpack(records))
end
for list, push in ipairs(pushes) do
  if #push > 0 then
    redis.call('LPUSH', KEYS[list + 1], unpack(push))
  end
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return answers
