-- Search jobs in a queue, from its end that is fetched first, within bounds.
-- ARGV[1] the list, ARGV[2] number of jobs to skip, ARGV[3] maximum of jobs, ARGV[4] maximum of bytes, then ids
-- Returns the number of jobs read, 1 if there may be more, and the ids found.
local list, skip, most, left = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local wanted, found, read = {}, {}, 0
for n = 5, #ARGV do
  wanted[ARGV[n]] = true
end
while read < most and left > 0 do
  local at = -1 - skip - read
  local job = redis.call('LRANGE', list, at, at)[1]
  if not job then
    return { read, 0, found }
  end
  local id, cost = jid_of(job)
  left = left - cost
  if wanted[id] then
    found[#found + 1] = id
  end
  read = read + 1
end
return { read, 1, found }
