-- Spend one retry from a budget, or only read it: a bucket of `burst` retries that refills by one every `interval`.
-- KEYS[1] the source's budgets
-- ARGV[1] name, [2] interval in µs (0: it never refills, and nothing is granted), [3] burst, [4] number to spend (0:
-- read only), [5] minimum lifetime of the record in ms
-- Returns 1 (granted) or 0, and the number left.
-- Stored as one time, when it is full again (GCRA), in whole µs, so that a million grants add up exactly. Any window of
-- W seconds grants at most burst + W / interval.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, burst, spent = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

-- Return the number left under a budget's parameters; for one that never refills, the number itself is stored.
local function left(full_at, interval, burst)
  if interval == 0 then
    return math.min(full_at, burst)
  end
  return math.max(0, burst - math.max(0, full_at - now) / interval)
end

local function write(full_at)
  if spent == 0 then
    return -- a reader may use other parameters than those who spend, and must not change what is left for them
  end
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f %.0f %.0f', full_at, interval, burst))
  -- All budgets of a source expire together, when the slowest is full again: earlier expiry would refill it.
  local lives = math.max(tonumber(ARGV[5]), math.ceil((full_at - now) / 1000))
  if redis.call('PTTL', KEYS[1]) < lives then
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', lives))
  end
end

local full_at = interval == 0 and 0 or now
local held = redis.call('HGET', KEYS[1], ARGV[1])
local was_full_at, was_interval, was_burst = string.match(held or '', '^(%d+) (%d+) (%d+)$')
if was_full_at then
  full_at, was_interval, was_burst = tonumber(was_full_at), tonumber(was_interval), tonumber(was_burst)
  if was_interval ~= interval or was_burst ~= burst then
    -- New parameters are no refill: the number left stays, up to the new burst, and refills at the new rate from now
    -- on.
    local kept = math.min(burst, left(full_at, was_interval, was_burst))
    full_at = interval == 0 and math.floor(kept) or math.ceil(now + (burst - kept) * interval)
    write(full_at)
  end
elseif interval == 0 then
  write(0) -- so that it is not full if it is opened later
end
local granted = 0
if interval > 0 and spent > 0 then
  local then_full_at = math.max(full_at, now) + interval * spent
  if then_full_at <= now + burst * interval then
    full_at, granted = then_full_at, 1
    write(full_at)
  end
end
return {granted, interval == 0 and 0 or math.floor(left(full_at, interval, burst))}
