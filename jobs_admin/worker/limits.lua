-- How many at once and how many in a time, over all workers. Parts of scripts: at_start.py puts them together.
-- Times are ms since 1970 (`now`) and, for starts, µs (`now_us`), by this server's clock alone.

local LEASE_MS = 30000
local FORGOTTEN_MS = 3600000 -- somebody who waits and has not asked for so long does not come

-- One of `limit` places for `token`. Answers 0 (it holds one), or in how many ms to ask again.
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
  -- When those before it will have had their turn, by how long jobs held their places lately.
  local held_ms = tonumber(redis.call('GET', leases .. ':time') or '1000')
  local place = redis.call('ZRANK', line, job) + 1
  return math.floor(math.max(200, math.min(LEASE_MS, place * held_ms / limit)))
end

-- A place that is held: since when (ms), among how many, and in which set of leases. Nil where none is.
local function held_place(said)
  return string.match(said or '', '^(%d+) (%d+) (.*)$')
end

-- Whether a place ran out while its job still ran, and was given to another: then more run, or ran, than the limit allows.
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

-- Let go of a place whose job's end was never told: its holder begins another, or is no more.
local function drop(held, token)
  local _, _, leases = held_place(redis.call('HGET', held, token))
  if leases then
    redis.call('HDEL', held, token)
    redis.call('ZREM', leases, token)
  end
end

-- Give a place back, and learn from it how long places are held. Answers whether it had been given to another meanwhile.
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

-- A worker lives: what its jobs hold stays theirs, also what ran out while nobody could be reached. Answers who holds, and
-- how many of these places had been given to others.
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

-- Kept with the life of the worker that had not renewed in time, which tells it by its heartbeat.
local function note_overrun(boot, count)
  if count > 0 then
    redis.call('HINCRBY', boot, 'overrun', count)
  end
end

-- At most `most` starts in any `per_us`. Answers 0 (this one may start), or in how many ms it is this job's turn.
-- The list holds the last `most` starts: the oldest of them must have left the window.
local function turn(starts, most, per_us, job, now_us)
  local line = starts .. ':line'
  redis.call('LTRIM', starts, 0, most - 1)
  local oldest = redis.call('LINDEX', starts, most - 1)
  local free_at = oldest and oldest + per_us or now_us
  local is_in_line = redis.call('ZSCORE', line, job)
  local last = tonumber(redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')[2] or '0')
  -- Turns that were promised by a slower rule hold up nobody: by this one, all who wait are through so soon.
  last = math.min(last, math.max(free_at, now_us) + redis.call('ZCARD', line) * per_us / most)
  -- Who comes new stands behind those who wait already: else those would never have their turn.
  if free_at <= now_us and (is_in_line or last <= now_us) then
    redis.call('LPUSH', starts, string.format('%.0f', now_us))
    redis.call('PEXPIRE', starts, math.ceil(per_us / 1000) + 1000)
    redis.call('ZREM', line, job)
    return 0
  end
  redis.call('ZREMRANGEBYSCORE', line, '-inf', now_us - FORGOTTEN_MS * 1000)
  local at = math.max(free_at, now_us)
  if not is_in_line then
    -- Turns are promised one by one, so that those who wait do not come back together.
    at = math.max(at, last + per_us / most)
    redis.call('ZADD', line, string.format('%.0f', at), job)
  end
  redis.call('PEXPIRE', line, math.ceil((at - now_us) / 1000) + FORGOTTEN_MS)
  return math.max(1, math.ceil((at - now_us) / 1000))
end
