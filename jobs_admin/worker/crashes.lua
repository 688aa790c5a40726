-- Facts about a job that may crash its worker. Parts of scripts, combined by at_start.py.
-- A job's hash: token of a start -> JSON. An orderly end removes the start and earlier facts; the rest are running
-- starts and crashes:
--   killed, hard_limit, memory: only the job's process died; reported by the worker's main process
--   lost: its worker died; found when the job is redelivered. All jobs that ran in that worker are suspects, so each
--   must run alone before one is convicted.

-- SILENT_MS: a worker without a beat for this time is dead (core/keys.py).
local KEPT_MS = 8 * 86400000

-- Return why a start has no end yet: `running`, `crash` or `undecided`; nil if it no longer counts. For a crash, also
-- the ms until the broker redelivered the job, which may be an hour and do not count for the window.
local function fate(job, token, start, boots, my_boot, now)
  if start.boot == my_boot then
    return 'running' -- by a process beside this one: our own worker is alive, and would have reported a crash
  end
  local boot = boots.prefix .. start.boot
  local at = tonumber(redis.call('ZSCORE', boots.key, start.boot) or '0')
  if now - at <= SILENT_MS then
    -- It may have died just now, or the broker redelivered its job too early: its next beat decides.
    local looked = tonumber(redis.call('HGET', job, 'look ' .. token) or '0')
    if looked > 0 and at > looked then
      return 'running'
    elseif looked == 0 then
      redis.call('HSET', job, 'look ' .. token, now)
    end
    return 'undecided'
  end
  redis.call('HDEL', job, 'look ' .. token)
  redis.call('HDEL', boot .. ':running', token)
  if redis.call('HGET', boot, 'leaving') then
    redis.call('HDEL', job, token) -- it was ordered to shut down before it ended: no job's crash
    return nil
  end
  redis.call('HSETNX', boot, 'died_with', redis.call('HLEN', boot .. ':running') + 1)
  redis.call('PEXPIRE', boot, KEPT_MS)
  start.how, start.seen, start.beside = 'lost', now, redis.call('HGET', boot, 'died_with') - 1
  return 'crash', at > 0 and now - at or now - start.at
end

-- Return all facts about a job: open starts, crashes within the window (oldest first), and whether one is undecided.
local function known(job, boots, my_boot, window, now)
  local found = { open = 0, crashes = {}, undecided = false, quarantined = false }
  local all = redis.call('HGETALL', job)
  local lain = 0
  for i = 1, #all, 2 do
    local token = all[i]
    if token == 'quarantined' then
      found.quarantined = true
    elseif string.sub(token, 1, 5) ~= 'look ' then
      local start = cjson.decode(all[i + 1])
      start.token = token
      local is, for_ms = 'crash', 0
      if not start.how then
        is, for_ms = fate(job, token, start, boots, my_boot, now)
      end
      if is == 'crash' then
        lain = math.max(lain, for_ms)
        found.crashes[#found.crashes + 1] = start
      elseif is then
        found.open = found.open + 1
        found.undecided = found.undecided or is == 'undecided'
      end
    end
  end
  local within = {}
  for _, crash in ipairs(found.crashes) do
    crash.at = crash.at + lain
    if now - crash.at < window then
      within[#within + 1] = crash
      if lain > 0 then
        redis.call('HSET', job, crash.token, cjson.encode(crash))
      end
    elseif not found.quarantined then
      redis.call('HDEL', job, crash.token)
    end
  end
  table.sort(within, function(a, b) return a.at < b.at end)
  found.crashes = within
  return found
end

-- Return whether its crashes convict it: as many as the policy allows, at least one of them without another suspect.
local function is_poison(crashes, most)
  local is_proved = false
  for _, crash in ipairs(crashes) do
    -- A job that started alone may have been joined by another whose patience ended.
    is_proved = is_proved or crash.how ~= 'lost' or (crash.alone and crash.beside == 0)
  end
  return #crashes >= most and is_proved
end

local function deaths_among(crashes)
  local deaths = 0
  for _, crash in ipairs(crashes) do
    deaths = deaths + (crash.how == 'lost' and 1 or 0)
  end
  return deaths
end

local function quarantine(job, crashes)
  redis.call('HSET', job, 'quarantined', '1') -- for a second delivery of its message
  redis.call('PEXPIRE', job, KEPT_MS)
  return { 'quarantine', cjson.encode(crashes) }
end

local function note_start(job, boot, token, start, told)
  redis.call('HSET', job, token, cjson.encode(start))
  redis.call('PEXPIRE', job, KEPT_MS)
  redis.call('HSET', boot .. ':running', token, told)
  redis.call('PEXPIRE', boot .. ':running', KEPT_MS)
end

-- Record a reported crash under its own name: it may be reported twice, and its process may live and start the job
-- again. `unseen`: the start to use if it was not counted because the store did not answer; nil if that would not be a
-- crash.
local function note_crash(job, boot, token, name, how, said, unseen, now)
  local text = redis.call('HGET', job, token)
  local start = text and cjson.decode(text) or unseen
  if not start or redis.call('HEXISTS', job, 'crash ' .. name) == 1 then
    return
  end
  start.how, start.said, start.seen = how, said, now
  redis.call('HDEL', job, token, 'look ' .. token) -- its fate is no longer in question
  redis.call('HDEL', boot .. ':running', token)
  redis.call('HSET', job, 'crash ' .. name, cjson.encode(start))
  redis.call('PEXPIRE', job, KEPT_MS)
end

-- Forget the last job of this slot, which has ended even if that was not reported: the slot is about to start another,
-- or has ended.
local function forget_last(boot, token)
  local text = redis.call('HGET', boot .. ':running', token)
  local last = text and cjson.decode(text).key
  if last then
    redis.call('HDEL', last, token, 'look ' .. token)
  end
end

-- Record an orderly end: earlier facts are dropped, except another running delivery of the job, and a quarantine.
local function note_end(job, boot, token)
  redis.call('HDEL', boot .. ':running', token)
  redis.call('HDEL', job, token, 'look ' .. token)
  if redis.call('HEXISTS', job, 'quarantined') == 1 then
    return
  end
  local all = redis.call('HGETALL', job)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 5) ~= 'look ' and cjson.decode(all[i + 1]).how then
      redis.call('HDEL', job, all[i])
    end
  end
end
