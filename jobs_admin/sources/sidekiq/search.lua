-- Search jobs in a queue, from its end that is fetched first.
-- ARGV[1] the list, ARGV[2] number of jobs to skip, ARGV[3] maximum of jobs, ARGV[4] maximum of bytes, then ids
-- Returns the number of jobs read, and the ids found.
local AT_ONCE = 20
local list, skip, most, left = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local wanted, found, read = {}, {}, 0
for n = 5, #ARGV do
  wanted[ARGV[n]] = true
end
while read < most and left > 0 do
  local last = -1 - skip - read
  local jobs = redis.call('LRANGE', list, last - AT_ONCE + 1, last)
  for _, job in ipairs(jobs) do
    left = left - #job
    local id = string.match(job, '"jid"%s*:%s*"([^"]*)"')
    local is_json, one = true, nil
    if not (id and wanted[id]) then
      is_json, one = pcall(cjson.decode, job)
      id = is_json and type(one) == 'table' and one.jid
    end
    if id and wanted[id] then
      found[#found + 1] = id
    end
  end
  read = read + #jobs
  if #jobs < AT_ONCE then
    break
  end
end
return { read, found }
