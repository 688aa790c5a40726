-- Find jobs of a sorted set.
-- ARGV[1] the set, then score and id of each job
-- Returns the size of the set, its least score ('' if it is empty), then for each job 1 if it is there, 0 if not, 2 if
-- unknown.
local MOST = 20 -- jobs with one score
local set = ARGV[1]
local answers = { redis.call('ZCARD', set), redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2] or '' }
for n = 2, #ARGV, 2 do
  local same = redis.call('ZRANGEBYSCORE', set, ARGV[n], ARGV[n], 'LIMIT', 0, MOST)
  local answer = #same == MOST and 2 or 0
  for _, job in ipairs(same) do
    if string.find(job, ARGV[n + 1], 1, true) then
      answer = 1
    end
  end
  answers[#answers + 1] = answer
end
return answers
