-- Read the relevant events of a section of one queue's stream: failures, waiting retries, removals, jobs retried by
-- someone, and successes of jobs sent by us. In a busy queue, nearly all events are others.
-- KEYS[1] events, KEYS[2] base of the queue's keys; ARGV[1] start (as for XRANGE), ARGV[2] maximum of entries to check,
-- ARGV[3] text before a job's id in the key of our record, ARGV[4] '1': return all events of the jobs ARGV[5..], and no
-- others
-- Stops earlier after large entries: a failure's reason may have any size, and no other client is served meanwhile.
-- Returns the last entry checked ('' if there was none), 1 if more may follow (else 0); for each relevant event: entry,
-- event, job id, more (the start of a reason); and for jobs that succeeded: a minute (since 1970), their number, the
-- next minute …
local AT_ONCE, BYTES, REASON = 5, 2000000, 20000
local told, last = {}, ''
local ran, minutes = {}, {}
local wanted
if ARGV[4] == '1' then
  wanted = {}
  for i = 5, #ARGV do
    wanted[ARGV[i]] = true
  end
end
if redis.call('TYPE', KEYS[1]).ok ~= 'stream' then
  return {'', 0, told, {}}
end
local read = 0
local function look_at(entry)
  local said = {}
  for i = 1, #entry[2], 2 do
    said[entry[2][i]] = entry[2][i + 1]
    read = read + #entry[2][i] + #entry[2][i + 1]
  end
  local event, id = said.event, said.jobId
  last = entry[1]
  if event == 'completed' then
    local minute = math.floor(tonumber(string.match(last, '^%d+')) / 60000)
    if not ran[minute] then
      ran[minute] = 0
      minutes[#minutes + 1] = minute
    end
    ran[minute] = ran[minute] + 1
  end
  local matters = false
  if id == nil then
    matters = false
  elseif wanted then
    matters = wanted[id]
  elseif event == 'failed' or event == 'retries-exhausted' or event == 'removed' then
    matters = true
  elseif event == 'waiting' then
    matters = said.prev == 'failed'
  elseif event == 'completed' then
    matters = redis.call('EXISTS', ARGV[3] .. id) == 1
  elseif event == 'delayed' then
    matters = redis.call('HEXISTS', KEYS[2] .. id, 'failedReason') == 1
  end
  if matters then
    told[#told + 1] = {entry[1], event, id, string.sub(said.failedReason or said.attemptsMade or said.prev or '', 1, REASON)}
  end
end

local begin, left, more, size = ARGV[1], tonumber(ARGV[2]), true, BYTES
while more and left > 0 and read < BYTES do
  -- The first entry, and those after large ones, are read one at a time.
  local count, before = math.min(left, size > BYTES / 20 and 1 or AT_ONCE), read
  local page = redis.call('XRANGE', KEYS[1], begin, '+', 'COUNT', count)
  for _, entry in ipairs(page) do
    look_at(entry)
  end
  left, more, begin, size = left - #page, #page == count, '(' .. last, read - before
end
local counts = {}
for _, minute in ipairs(minutes) do
  counts[#counts + 1] = minute
  counts[#counts + 1] = ran[minute]
end
return {last, more and 1 or 0, told, counts}
