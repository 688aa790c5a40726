-- Send one batch: each token once, its record and its push in one step.
-- KEYS[1] ledger of the replay, KEYS[2..] queue lists
-- ARGV[1] seconds the ledger lives, ARGV[2] schema, then for each letter: token, index into KEYS, message
-- Answers a list with 1 (sent), 0 (already) or -1 (recalled) for each letter.
for i = 2, #KEYS do
  local kind = redis.call('TYPE', KEYS[i]).ok
  -- Checked before the first write: an error half-way would leave a part of the batch sent.
  if kind ~= 'list' and kind ~= 'none' then
    return redis.error_reply('REDRIVE not-a-queue ' .. KEYS[i])
  end
end
local closed = redis.call('HEXISTS', KEYS[1], 'recalled') == 1
local answers = {}
for i = 3, #ARGV, 3 do
  local answer
  if closed then
    answer = redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[2] and 0 or -1
  else
    answer = redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[2])
    if answer == 1 then
      redis.call('LPUSH', KEYS[tonumber(ARGV[i + 1])], ARGV[i + 2])
    end
  end
  answers[#answers + 1] = answer
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return answers
