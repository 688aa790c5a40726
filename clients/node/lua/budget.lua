-- Spend one retry from a budget, or look at it. A bucket of `burst` retries that fills by one every `interval`.
-- KEYS[1] the source's budgets
-- ARGV[1] name, ARGV[2] interval in µs (0: it never fills, and nothing is granted), ARGV[3] burst,
-- ARGV[4] how many to spend (0: only look), ARGV[5] ms that the record lives at least
-- Answers 1 (granted) or 0, and how many are left.
-- It is kept as one moment, when it will be full again (GCRA): whole µs, so that a million grants add up exactly. In any
-- window of W seconds at most burst + W / interval are granted.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, burst, spent = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

-- What is left under a rule; of one that never fills the number itself is kept.
local function left(full_at, interval, burst)
  if interval == 0 then
    return math.min(full_at, burst)
  end
  return math.max(0, burst - math.max(0, full_at - now) / interval)
end

local function write(full_at)
  if spent == 0 then
    return -- who only looks may go by another rule than those who spend, and must not change what is left for them
  end
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f %.0f %.0f', full_at, interval, burst))
  -- All of a source share one life: until the slowest is full again, or forgetting it would fill it.
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
    -- Another rule is no refill: what was left stays, as far as the new burst holds it, and fills at the new rate from now on.
    local kept = math.min(burst, left(full_at, was_interval, was_burst))
    full_at = interval == 0 and math.floor(kept) or math.ceil(now + (burst - kept) * interval)
    write(full_at)
  end
elseif interval == 0 then
  write(0) -- so that one that is opened later is not found full
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
