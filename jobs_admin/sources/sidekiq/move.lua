-- Change jobs of a sorted set that are still in it as they were read.
-- ARGV[1] the set, then for each job: its score, the job, its new score, the changed job
-- Returns for each 1 if it was changed, 0 if not.
local set, answers = ARGV[1], {}
for n = 2, #ARGV, 4 do
  local score = redis.call('ZSCORE', set, ARGV[n + 1])
  local is_there = score and tonumber(score) == tonumber(ARGV[n])
  if is_there then
    redis.call('ZADD', set, ARGV[n + 2], ARGV[n + 3])
    if ARGV[n + 3] ~= ARGV[n + 1] then
      redis.call('ZREM', set, ARGV[n + 1])
    end
  end
  answers[#answers + 1] = is_there and 1 or 0
end
return answers
