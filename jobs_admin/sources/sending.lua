-- Precedes the `send.lua` of each queue system (`one_redis.SENDING`). Redis does not roll back a script's writes after
-- an error, so all messages of a batch, and the types of all keys to be changed, are checked before the first write.

local function is_of(key, wanted)
  local kind = redis.call('TYPE', key).ok
  return kind == 'none' or kind == wanted
end

-- Return a list with 1 (to send), 0 (already sent) or -1 (withheld) for each message, by its token; and an error that
-- names those for which `why_not` returns a reason, or nil.
local function check(ledger, mark, messages, why_not)
  local answers, refused = {}, {}
  for n, message in ipairs(messages) do
    local known = redis.call('HGET', ledger, message.token)
    if known then
      answers[n] = known == mark and 0 or -1
    else
      answers[n] = 1
      local why = why_not(message)
      if why then
        refused[#refused + 1] = message.token .. ':' .. why
      end
    end
  end
  return answers, #refused > 0 and redis.error_reply('REDRIVE refused ' .. table.concat(refused, ' ')) or nil
end

