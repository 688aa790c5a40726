-- Begin to send: each token that nobody has begun is ours from now on.
-- KEYS[1] ledger of the replay; ARGV[1] seconds it lives, ARGV[2] the mark of what is begun, ARGV[3] of what was sent, then the tokens
-- Answers a list with 1 (ours), 0 (sent already), 3 (withheld) or 2 (begun by somebody, end unknown) for each token.
local answers, records = {}, {}
local known = redis.call('HMGET', KEYS[1], unpack(ARGV, 4))
for n, mark in ipairs(known) do
  if not mark then
    answers[n] = 1
    records[#records + 1] = ARGV[3 + n]
    records[#records + 1] = ARGV[2]
  elseif mark == ARGV[3] then
    answers[n] = 0
  elseif mark == 'withheld' then
    answers[n] = 3
  else
    answers[n] = 2
  end
end
if #records > 0 then
  redis.call('HSET', KEYS[1], unpack(records))
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return answers
