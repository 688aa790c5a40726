-- Begin sending: claim each token that no one has begun.
-- KEYS[1] ledger of the replay; ARGV[1] its lifetime in seconds, ARGV[2] mark of begun tokens, ARGV[3] mark of sent
-- ones, then the tokens
-- Returns a list with 1 (claimed), 0 (already sent), 3 (withheld) or 2 (begun by another caller, outcome unknown) for
-- each token.
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
