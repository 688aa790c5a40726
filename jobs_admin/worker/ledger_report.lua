-- Append a report to the stream, counted as in `core/stream.py`. Part of scripts.
-- `bound`: limit of the stream in bytes; nil for a short report that corrects an existing one.
-- Returns whether there was room. An empty stream accepts anything, as in `append.lua`.
local function report(stream, bytes, fields, bound)
  local held = 0
  if redis.call('XLEN', stream) > 0 then
    -- Without a count: filled by workers of an older version, or the count was deleted or is invalid.
    held = counted(bytes) or redis.call('MEMORY', 'USAGE', stream, 'SAMPLES', 100)
  end
  local weight = BESIDE
  for _, text in ipairs(fields) do
    weight = weight + #text
  end
  if bound and held > 0 and held + weight > bound then
    return false
  end
  redis.call('XADD', stream, '*', unpack(fields))
  redis.call('SET', bytes, string.format('%.0f', held + weight))
  return true
end
