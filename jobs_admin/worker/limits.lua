-- Limits of concurrent jobs and of starts per time, over all workers. Parts of scripts, combined by at_start.py.
-- Times are Unix ms (`now`) and, for starts, µs (`now_us`), by this server's clock only.

local LEASE_MS = 30000
local FORGOTTEN_MS = 3600000 -- a waiting job that has not called for this time is dropped from the line

-- Claim one of `limit` slots for `token`. Returns 0 (claimed), or the ms after which to call again.
local function lease(leases, limit, token, job, now)
  local line = leases .. ':line'
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)
  if redis.call('ZCARD', leases) < limit then
    redis.call('ZREM', line, job)
    return 0
  end
  redis.call('ZREMRANGEBYSCORE', line, '-inf', now - FORGOTTEN_MS)
  if not redis.call('ZSCORE', line, job) then
    redis.call('ZADD', line, now, job)
  end
  redis.call('PEXPIRE', line, FORGOTTEN_MS)
  -- When those before it will have had their turn, by the recent duration of slots.
  local held_ms = tonumber(redis.call('GET', leases .. ':time') or '1000')
  local place = redis.call('ZRANK', line, job) + 1
  return math.floor(math.max(200, math.min(LEASE_MS, place * held_ms / limit)))
end

-- Parse a claimed slot: its start (ms), limit, and set of leases. Returns nil without one.
local function held_place(said)
  return string.match(said or '', '^(%d+) (%d+) (.*)$')
end

-- Return whether a slot expired while its job still ran, and was given to another: then more run, or ran, than the
-- limit allows.
local function is_overrun(leases, limit, token, now)
  local ends = tonumber(redis.call('ZSCORE', leases, token) or '0')
  return ends <= now and redis.call('ZCOUNT', leases, '(' .. now, '+inf') >= tonumber(limit)
end

local function hold(leases, held, limit, token, now)
  redis.call('ZADD', leases, now + LEASE_MS, token)
  redis.call('PEXPIRE', leases, 2 * LEASE_MS)
  redis.call('HSET', held, token, now .. ' ' .. limit .. ' ' .. leases)
  redis.call('PEXPIRE', held, FORGOTTEN_MS)
end

-- Free a slot whose job's end was never reported: its holder starts another job, or has ended.
local function drop(held, token)
  local _, _, leases = held_place(redis.call('HGET', held, token))
  if leases then
    redis.call('HDEL', held, token)
    redis.call('ZREM', leases, token)
  end
end

-- Free a slot, and update the average duration of slots. Returns whether it was given to another meanwhile.
local function release(held, token, now)
  local since, limit, leases = held_place(redis.call('HGET', held, token))
  local over = since and is_overrun(leases, limit, token, now)
  if since then
    redis.call('HDEL', held, token)
    redis.call('ZREM', leases, token)
    local before = tonumber(redis.call('GET', leases .. ':time') or now - since)
    redis.call('SET', leases .. ':time', math.floor(before * 0.8 + (now - since) * 0.2), 'PX', FORGOTTEN_MS)
  end
  return over
end

-- Renew the slots of a live worker's jobs, including slots that expired while the store was unreachable. Returns the
-- holders, and the number of these slots given to others.
local function renew(held, now)
  local all, holders, overrun = redis.call('HGETALL', held), {}, 0
  for i = 1, #all, 2 do
    holders[#holders + 1] = all[i]
    local _, limit, leases = held_place(all[i + 1])
    if is_overrun(leases, limit, all[i], now) then
      overrun = overrun + 1
    end
    redis.call('ZADD', leases, now + LEASE_MS, all[i])
    redis.call('PEXPIRE', leases, 2 * LEASE_MS)
  end
  if #all > 0 then
    redis.call('PEXPIRE', held, FORGOTTEN_MS)
  end
  return holders, overrun
end

-- Stored with the boot of the worker that did not renew in time, which reports it in its heartbeat.
local function note_overrun(boot, count)
  if count > 0 then
    redis.call('HINCRBY', boot, 'overrun', count)
  end
end

-- Allow at most `most` starts in any `per_us`. Returns 0 (this job may start), or the ms until its turn.
-- The list contains the last `most` starts: the oldest of them must have left the window.
local function turn(starts, most, per_us, job, now_us)
  local line = starts .. ':line'
  redis.call('LTRIM', starts, 0, most - 1)
  local oldest = redis.call('LINDEX', starts, most - 1)
  local free_at = oldest and oldest + per_us or now_us
  local is_in_line = redis.call('ZSCORE', line, job)
  local last = tonumber(redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')[2] or '0')
  -- Turns promised under slower limits block no one: under this one, all waiting jobs are through by then.
  last = math.min(last, math.max(free_at, now_us) + redis.call('ZCARD', line) * per_us / most)
  -- New jobs queue behind waiting ones, which otherwise would never get their turn.
  if free_at <= now_us and (is_in_line or last <= now_us) then
    redis.call('LPUSH', starts, string.format('%.0f', now_us))
    redis.call('PEXPIRE', starts, math.ceil(per_us / 1000) + 1000)
    redis.call('ZREM', line, job)
    return 0
  end
  redis.call('ZREMRANGEBYSCORE', line, '-inf', now_us - FORGOTTEN_MS * 1000)
  local at = math.max(free_at, now_us)
  if not is_in_line then
    -- Turns are promised one by one, so that waiting jobs do not return together.
    at = math.max(at, last + per_us / most)
    redis.call('ZADD', line, string.format('%.0f', at), job)
  end
  redis.call('PEXPIRE', line, math.ceil((at - now_us) / 1000) + FORGOTTEN_MS)
  return math.max(1, math.ceil((at - now_us) / 1000))
end
