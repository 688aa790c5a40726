-- A report -> the stream, counted as `core/stream.py` says. Part of scripts.
-- `bound`: the bytes that the stream may hold; nil for a word that corrects one which stands there, and is short.
-- Answers whether there was room. A stream that is empty takes anything, as in `append.lua`.
local function report(stream, bytes, fields, bound)
  local held = 0
  if redis.call('XLEN', stream) > 0 then
    -- Without a count: it was filled by workers of an older version, or the count was deleted, or is none.
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
