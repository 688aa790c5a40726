-- What is known of a job that may end its worker. Parts of scripts: at_start.py puts them together.
-- A job's hash: token of a start -> JSON of it. A start that ends in order is taken out, and what was known with it; what
-- is left are those that run, and crashes:
--   killed, hard_limit, memory: the process that ran it, and nothing else; told by the worker's main process
--   lost: its whole worker; found out when the job comes back. Whoever ran in that worker is a suspect, so each has to
--   run alone before anybody is convicted.

-- SILENT_MS: a worker that gave no sign for so long is dead (core/keys.py).
local KEPT_MS = 8 * 86400000

-- Why a start has no end yet: `running`, `crash` or `undecided`; nil where it says nothing. A crash with the ms that the
-- job lay with the dead until the broker gave it back, which may be an hour and count for no window.
local function fate(job, token, start, boots, my_boot, now)
  if start.boot == my_boot then
    return 'running' -- by a process beside this one: our own worker lives, and would have told of a crash
  end
  local boot = boots.prefix .. start.boot
  local at = tonumber(redis.call('ZSCORE', boots.key, start.boot) or '0')
  if now - at <= SILENT_MS then
    -- It may have died a moment ago, or the broker gave its job away too early: its next sign tells.
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
    redis.call('HDEL', job, token) -- it was told to end before it did: that is nobody's crash
    return nil
  end
  redis.call('HSETNX', boot, 'died_with', redis.call('HLEN', boot .. ':running') + 1)
  redis.call('PEXPIRE', boot, KEPT_MS)
  start.how, start.seen, start.beside = 'lost', now, redis.call('HGET', boot, 'died_with') - 1
  return 'crash', at > 0 and now - at or now - start.at
end

-- All that is known of a job: starts that are open, crashes within the window (oldest first), whether that is undecided.
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

-- Whether its crashes convict it: as many as the policy asks for, and one of them with nobody else there to blame.
local function is_poison(crashes, most)
  local is_proved = false
  for _, crash in ipairs(crashes) do
    -- One that began alone may have been joined by another that lost its patience.
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

-- A crash that somebody saw, under a name of its own: it may be told twice, and its process may live and begin the job once
-- more. `unseen`: as a start that was not counted, because nobody answered then; nil where that would be no crash.
local function note_crash(job, boot, token, name, how, said, unseen, now)
  local text = redis.call('HGET', job, token)
  local start = text and cjson.decode(text) or unseen
  if not start or redis.call('HEXISTS', job, 'crash ' .. name) == 1 then
    return
  end
  start.how, start.said, start.seen = how, said, now
  redis.call('HDEL', job, token, 'look ' .. token) -- nobody will ask any more what became of it
  redis.call('HDEL', boot .. ':running', token)
  redis.call('HSET', job, 'crash ' .. name, cjson.encode(start))
  redis.call('PEXPIRE', job, KEPT_MS)
end

-- What this place began before has ended, also where nobody heard of that: it is about to begin something else, or is no more.
local function forget_last(boot, token)
  local text = redis.call('HGET', boot .. ':running', token)
  local last = text and cjson.decode(text).key
  if last then
    redis.call('HDEL', last, token, 'look ' .. token)
  end
end

-- In order: what was known is forgotten, but for another delivery of the job that still runs, and for a sentence.
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
