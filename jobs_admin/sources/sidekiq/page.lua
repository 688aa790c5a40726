-- Read jobs of a sorted set by score, within bounds.
-- ARGV[1] the set, ARGV[2] least score, ARGV[3] number to skip from there, ARGV[4] maximum of jobs, ARGV[5] maximum of
-- bytes in total, ARGV[6] maximum of bytes of a job (only the head of a larger one is returned)
-- Returns 1 if there may be more, then for each job: score, size, bytes.
local set, largest, left, answers = ARGV[1], tonumber(ARGV[6]), tonumber(ARGV[5]), { 0 }
local at = redis.call('ZCOUNT', set, '-inf', '(' .. ARGV[2]) + tonumber(ARGV[3])
for i = at, at + tonumber(ARGV[4]) - 1 do
  local job, score = unpack(redis.call('ZRANGE', set, i, i, 'WITHSCORES'))
  if not job then
    return answers
  end
  local taken = #job <= largest and job or string.sub(job, 1, 65536)
  if left < #taken and #answers > 1 then
    break
  end
  left = left - #taken - 200
  answers[#answers + 1] = { score, #job, taken }
end
answers[1] = 1
return answers
