-- Read jobs of one queue, as many as fit: all of a job in one step.
-- ARGV[1] prefix of RQ's keys, ARGV[2] the queue, ARGV[3] maximum size of a field that is read, ARGV[4] bytes after
-- which to stop, then the ids
-- Returns for each job reached: the type of its key, bytes of its fields, its scores in the failed and in the scheduled
-- registry ("" if missing), its fields, and its latest results: id, type, worker, error each.
local prefix, queue, largest, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local RESULTS, FIELDS = 10, 200
local read = 0 -- bytes of all jobs so far, including data that is not returned: it passes through the server's memory
-- Fields read of a hash with more fields, which is not only RQ's job: it is shown, but incomplete.
local KNOWN = {
  'status', 'origin', 'created_at', 'enqueued_at', 'started_at', 'ended_at', 'failure_ttl', 'retries_left', 'number_of_retries',
  'redrive', 'worker_name', 'description', 'exc_info', 'data',
}

local function score(registry, id)
  local found = redis.pcall('ZSCORE', prefix .. ':' .. registry .. ':' .. queue, id)
  return type(found) == 'string' and found or ''
end

local function results_of(id)
  -- One at a time: a result may contain a job's return value, of any size.
  local found, before, size = {}, '+', 0
  while #found < RESULTS and size <= largest do
    local entries = redis.pcall('XREVRANGE', prefix .. ':results:' .. id, before, '-', 'COUNT', 1)
    local entry = not entries.err and entries[1]
    if not entry then
      break
    end
    local values = {}
    for i = 1, #entry[2], 2 do
      values[entry[2][i]] = entry[2][i + 1]
      size = size + #entry[2][i + 1]
    end
    local text = values['exc_string'] or ''
    found[#found + 1] = {
      entry[1], string.sub(values['type'] or '', 1, 20), string.sub(values['worker_name'] or '', 1, 300),
      #text <= largest and #found < 1 and text or '',
    }
    before = '(' .. entry[1]
  end
  read = read + size
  return found
end

local answers = {}
for i = 5, #ARGV do
  if read > most then
    break
  end
  local key, id = prefix .. ':job:' .. ARGV[i], ARGV[i]
  local kind, size, fields = redis.call('TYPE', key).ok, 0, {}
  if kind == 'hash' then
    local is_long = redis.call('HLEN', key) > FIELDS
    for _, name in ipairs(is_long and KNOWN or redis.call('HKEYS', key)) do
      local length = redis.call('HSTRLEN', key, name)
      size = size + length
      local value = size <= largest and redis.call('HGET', key, name)
      if value then
        fields[#fields + 1], fields[#fields + 2] = name, value
        read = read + length
      end
    end
    size = is_long and math.max(size, largest + 1) or size
  end
  answers[#answers + 1] = {kind, size, score('failed', id), score('scheduled', id), fields, results_of(id)}
end
return answers
