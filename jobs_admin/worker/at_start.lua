-- Decide whether a job may start: one answer for all limits. Nothing is claimed unless it may.
-- KEYS[1] the job, [2] its worker's boot, [3] all boots, [4] leases, [5] this worker's slots, [6] starts
-- ARGV[1] token, [2] boot, [3] worker's name, [4] description of the job, [5] its name in waiting lines, [6] whether it
-- is alone in its worker ('' not checked, 'alone', or 'beside': not possible), [7] maximum crashes (0: not counted),
-- [8] window in ms, [9] maximum concurrent jobs (0: no limit), [10] maximum starts (0: no limit), [11] per µs
-- Returns go · wait, ms, reason · alone, deaths of workers · quarantine, its crashes
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
local most, at_once, starts = tonumber(ARGV[7]), tonumber(ARGV[9]), tonumber(ARGV[10])
if most > 0 then
  forget_last(KEYS[2], ARGV[1])
end
if most > 0 and redis.call('EXISTS', KEYS[1]) == 1 then
  local boots = { key = KEYS[3], prefix = string.sub(KEYS[2], 1, #KEYS[2] - #ARGV[2]) }
  local is = known(KEYS[1], boots, ARGV[2], tonumber(ARGV[8]), now)
  if is.quarantined or is_poison(is.crashes, most) then
    return quarantine(KEYS[1], is.crashes)
  elseif is.undecided or (is.open > 0 and #is.crashes + is.open >= most) then
    -- Includes a job that also runs elsewhere now and would have one crash too many if both ended by a crash.
    return { 'wait', 5500, 'undecided' }
  elseif ARGV[6] == '' and deaths_among(is.crashes) > 0 then
    return { 'alone', deaths_among(is.crashes) }
  end
end
if at_once > 0 then
  drop(KEYS[5], ARGV[1])
  local ms = lease(KEYS[4], at_once, ARGV[1], ARGV[5], now)
  if ms > 0 then
    return { 'wait', ms, 'concurrency' }
  end
end
if starts > 0 then
  local ms = turn(KEYS[6], starts, tonumber(ARGV[11]), ARGV[5], now_us)
  if ms > 0 then
    return { 'wait', ms, 'rate' }
  end
end
if at_once > 0 then
  hold(KEYS[4], KEYS[5], ARGV[9], ARGV[1], now)
end
if most > 0 then
  local start = { at = now, boot = ARGV[2], worker = ARGV[3], alone = ARGV[6] == 'alone' }
  note_start(KEYS[1], KEYS[2], ARGV[1], start, ARGV[4])
end
return { 'go' }
