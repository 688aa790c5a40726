-- Return the states of jobs of one queue, without their data and results.
-- ARGV[1] prefix of RQ's keys, ARGV[2] the queue, ARGV[3] maximum size of a field that is read, ARGV[4] number of
-- fields, then their names, then the ids
-- Returns for each job: the type of its key, its scores in the failed and in the scheduled registry ("" if missing),
-- its fields ("" if missing or larger).
local prefix, queue, largest, count = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local function score(registry, id)
  local found = redis.pcall('ZSCORE', prefix .. ':' .. registry .. ':' .. queue, id)
  return type(found) == 'string' and found or ''
end

local answers = {}
for i = 5 + count, #ARGV do
  local key, values = prefix .. ':job:' .. ARGV[i], {}
  local kind = redis.call('TYPE', key).ok
  for n = 1, count do
    local name = ARGV[4 + n]
    local is_read = kind == 'hash' and redis.call('HSTRLEN', key, name) <= largest
    values[n] = is_read and redis.call('HGET', key, name) or ''
  end
  answers[#answers + 1] = {kind, score('failed', ARGV[i]), score('scheduled', ARGV[i]), values}
end
return answers
