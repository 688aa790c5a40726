-- Count jobs of a sorted set by queue, within bounds.
-- ARGV[1] the set, ARGV[2] index of the first, ARGV[3] maximum of jobs, ARGV[4] maximum of bytes
-- Returns the index of the next job (-1: these were the last), the bytes read, then queue and number in turn.
local set, at, left = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])
local counts, after, answers = {}, -1, {}
for i = at, at + tonumber(ARGV[3]) do
  local job = redis.call('ZRANGE', set, i, i)[1]
  if not job then
    break
  end
  if i == at + tonumber(ARGV[3]) or left <= 0 then
    after = i
    break
  end
  left = left - #job
  local is_json, read = pcall(cjson.decode, job)
  local queue = is_json and type(read) == 'table' and type(read.queue) == 'string' and read.queue or ''
  counts[queue] = (counts[queue] or 0) + 1
end
answers = { after, tonumber(ARGV[4]) - left }
for queue, count in pairs(counts) do
  answers[#answers + 1] = queue
  answers[#answers + 1] = count
end
return answers
