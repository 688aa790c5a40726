-- Read dead letters within bounds.
-- ARGV[1] the dead-letter queue, ARGV[2] maximum bytes of a message that is read (only the size of a larger one),
-- ARGV[3] maximum of bytes in total, then their names in Redis
-- Returns for each, until the bytes are reached: time of death (ms, '' if it does not exist), size (-1: no message),
-- message.
local queue, largest, left, answers = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), {}
for i = 4, #ARGV do
  local size = redis.call('HEXISTS', queue .. '.msgs', ARGV[i]) == 1 and redis.call('HSTRLEN', queue .. '.msgs', ARGV[i]) or -1
  local taken = size >= 0 and size <= largest and size or 0
  if left < taken and #answers > 0 then
    break
  end
  left = left - taken - 200
  answers[#answers + 1] = {
    redis.call('ZSCORE', queue, ARGV[i]) or '', size, taken == size and size > 0 and redis.call('HGET', queue .. '.msgs', ARGV[i]) or '',
  }
end
return answers
