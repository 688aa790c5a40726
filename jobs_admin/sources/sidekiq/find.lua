-- Find jobs of a sorted set.
-- ARGV[1] the set, ARGV[2] whether those found are removed (1), then score and id of each job
-- Returns the size of the set, its least score ('' if it is empty), then for each job 1 if it is there, 0 if not, 2 if
-- unknown.
local MOST = 20 -- jobs with one score
local set = ARGV[1]
local answers = { redis.call('ZCARD', set), redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2] or '' }

local function compare(job, id)
  local _, last, found = string.find(job, '"jid"%s*:%s*"([^"\\]*)"')
  if found == id and not string.find(job, '"jid"', last, true) then
    return 1
  end
  local is_json, read = pcall(cjson.decode, job)
  if not is_json then
    return string.find(job, id, 1, true) and 2 or 0
  end
  return type(read) == 'table' and read.jid == id and 1 or 0
end

for n = 3, #ARGV, 2 do
  local same = redis.call('ZRANGEBYSCORE', set, ARGV[n], ARGV[n], 'LIMIT', 0, MOST)
  local answer = #same == MOST and 2 or 0
  for _, job in ipairs(same) do
    local found = compare(job, ARGV[n + 1])
    if found == 1 and ARGV[2] == '1' then
      redis.call('ZREM', set, job)
    end
    answer = (found == 1 or answer == 1) and 1 or math.max(found, answer)
  end
  answers[#answers + 1] = answer
end
return answers
