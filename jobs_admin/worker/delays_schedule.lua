-- Schedule one job, once.
-- KEYS[1] due, KEYS[2] due:jobs, KEYS[3] due:claims, KEYS[4] due:gone; for a job on hold, KEYS[5] to KEYS[7] are
-- KEYS[4] to KEYS[6] of `delays_release.lua`
-- ARGV[1] the job's member, ARGV[2] delay in ms, ARGV[3] entry (a line of JSON, then the message), ARGV[4] maximum of
-- delayed jobs
-- ARGV[5], ARGV[6], if not empty: the broker's unacknowledged deliveries, and the tag of this one, which must exist
-- ARGV[7] idempotency key of the delivery, if not empty
-- ARGV[8] breaker that holds it, ARGV[9] rank of its priority, ARGV[10] its queue and tenant
-- Returns 1 (scheduled), 0 (already scheduled, or left since the first call with this key, or this delivery was taken
-- back), -1 (too many delayed jobs).
if ARGV[5] ~= '' and redis.call('HEXISTS', ARGV[5], ARGV[6]) == 0 then
  return 0
end
if ARGV[7] ~= '' then
  local known = head_of(redis.call('HGET', KEYS[2], ARGV[1]))
  if known and known.idempotency_key == ARGV[7] or redis.call('ZSCORE', KEYS[4], ARGV[7]) then
    return 0
  end
end
local is_there = redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1
if is_there and redis.call('HEXISTS', KEYS[3], ARGV[1]) == 0 then
  return 0
end
if not is_there and redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[4]) then
  return -1
end
-- By this server's clock, here and when promoted: workers' clocks differ.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if is_there then
  local entry = redis.call('HGET', KEYS[2], ARGV[1])
  note_gone(KEYS[4], entry, now) -- claimed: it has reached its queue by now
  unhold(entry, ARGV[1])
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[1])
-- The claimant is about to report that it is on its queue, and it was: a worker had it and delays it again (no free
-- slot). The entry is a new one now, which the claimant must not remove.
redis.call('HDEL', KEYS[3], ARGV[1])
if KEYS[5] then
  -- One place after the last of its queue and tenant, and never before the last released job: tenants take turns, and
  -- none accumulates turns.
  local known = tonumber(redis.call('HGET', KEYS[6], 'm:' .. ARGV[1]) or '')
  redis.call('HDEL', KEYS[6], 'm:' .. ARGV[1])
  local tenant = ARGV[9] .. ':' .. ARGV[10]
  local released = tonumber(redis.call('HGET', KEYS[6], ARGV[9] .. ':') or 0)
  local place = math.max(released, tonumber(redis.call('HGET', KEYS[6], tenant) or 0)) + 1
  if known and math.floor(known / RANK) == tonumber(ARGV[9]) then
    redis.call('ZADD', KEYS[5], string.format('%.0f', known), ARGV[1])
  else
    redis.call('HSET', KEYS[6], tenant, string.format('%.0f', place))
    redis.call('ZADD', KEYS[5], string.format('%.0f', ARGV[9] * RANK + place), ARGV[1])
  end
  redis.call('SADD', KEYS[7], ARGV[8])
end
return 1
