-- Find jobs of a sorted set, within bounds.
-- ARGV[1] the set, ARGV[2] whether those found are removed (1), ARGV[3] maximum of bytes, then score and id of each job
-- Returns the size of the set, its least score ('' if it is empty), then for each job 1 if it is there, 0 if not, 2 if
-- unknown. There are fewer answers than jobs if the bytes did not suffice, but at least one.
local MOST = 20 -- jobs with one score
local set, left = ARGV[1], tonumber(ARGV[3])
local answers = { redis.call('ZCARD', set), redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2] or '' }
local scores = {}

-- Read the jobs of a score once: by id, those that cannot be read, whether these are all, and whether bytes ran out.
local function read(score)
  local at, count = redis.call('ZCOUNT', set, '-inf', '(' .. score), redis.call('ZCOUNT', set, score, score)
  local found = { by_id = {}, unreadable = {}, is_all = count < MOST, is_cut = false }
  for n = 0, math.min(count, MOST) - 1 do
    if n > 0 and left <= 0 then
      found.is_all, found.is_cut = false, true
      break
    end
    local job = redis.call('ZRANGE', set, at + n, at + n)[1]
    local id, cost, is_json = jid_of(job)
    left = left - cost
    found.by_id[id] = found.by_id[id] or {}
    table.insert(is_json and found.by_id[id] or found.unreadable, job)
  end
  return found
end

local function answer_for(same, id)
  if same.by_id[id] and #same.by_id[id] > 0 then
    return 1
  end
  for _, job in ipairs(same.unreadable) do
    left = left - #job
    if string.find(job, id, 1, true) then
      return 2
    end
  end
  return same.is_all and 0 or 2
end

for n = 4, #ARGV, 2 do
  local score, id = ARGV[n], ARGV[n + 1]
  local is_free = scores[score] and #scores[score].unreadable == 0
  if n > 4 and left <= 0 and not is_free then
    break
  end
  if not scores[score] then
    local same = read(score)
    if same.is_cut and n > 4 then
      break -- the next call has all bytes for it
    end
    scores[score] = same
  end
  local answer = answer_for(scores[score], id)
  if answer == 1 and ARGV[2] == '1' then
    for _, job in ipairs(scores[score].by_id[id]) do
      redis.call('ZREM', set, job)
    end
    scores[score].by_id[id] = nil
  end
  answers[#answers + 1] = answer
end
return answers
