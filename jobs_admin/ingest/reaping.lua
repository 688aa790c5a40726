-- A worker is dead: what it kept of the jobs that ran in it becomes reports, each once, whoever else looks.
-- KEYS[1] the boots that keep some, [2] what this boot keeps, [3] all boots, [4] the stream of reports, [5] how many bytes that
-- holds, [6] the boots of guards of the version before, with their source
-- ARGV[1] this boot in [6], [2] boot, [3] its last sign as it was found ('' for none), [4] ms of silence after which it is dead,
-- [5] why, as JSON text, [6] most reports at once, [7] most bytes, [8] ms for which it is known what was filed,
-- [9] bytes that the stream may hold
-- Answers how many were filed, and whether more are left to file at once. What the stream has no room for stays kept.
local time = redis.call('TIME')
local now = math.floor((time[1] * 1000000 + time[2]) / 1000)
local sign = tonumber(redis.call('ZSCORE', KEYS[3], ARGV[2]) or '')
if sign ~= tonumber(ARGV[3]) or (sign and now - sign <= tonumber(ARGV[4])) then
  return { 0, 0 } -- it lives
end
local filed, bytes = 0, 0
for _, job in ipairs(redis.call('HKEYS', KEYS[2])) do
  if filed >= tonumber(ARGV[6]) or bytes >= tonumber(ARGV[7]) then
    return { filed, 1 }
  end
  local kept = redis.call('HGET', KEYS[2], job)
  local fields = { 'kept', kept } -- unreadable, and filed as such
  local began, version, length, key, signature, at = string.match(kept, '^(%d+) (%d+) (%d+) ?(%x*) ?(%x*)\n()')
  if began then
    local shown, raw = string.sub(kept, at, at + length - 1), string.sub(kept, at + length)
    -- Beside what the worker signed, and not in it.
    local lost = string.format('{"at": %.3f, "reason": %s}', math.max(tonumber(began), sign or 0) / 1000, ARGV[5])
    fields = { 'v', version, 'meta', shown, 'raw', raw, 'lost', lost }
    if signature ~= '' then
      fields = { 'v', version, 'meta', shown, 'raw', raw, 'lost', lost, 'key', key, 'sig', signature }
    end
  end
  if not report(KEYS[4], KEYS[5], fields, tonumber(ARGV[9])) then
    return { filed, 0 }
  end
  redis.call('HDEL', KEYS[2], job)
  -- Whatever the source wrote there: a failure here would end the script.
  redis.pcall('SADD', KEYS[2] .. ':lost', job)
  redis.pcall('PEXPIRE', KEYS[2] .. ':lost', ARGV[8])
  filed, bytes = filed + 1, bytes + #kept
end
redis.pcall('SREM', KEYS[1], ARGV[2])
redis.pcall('SREM', KEYS[6], ARGV[1])
return { filed, 0 }
