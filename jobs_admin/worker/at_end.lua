-- Record the end of a job, orderly or not.
-- KEYS[1] the job, [2] its worker's boot, [3] all boots, [4] this worker's slots
-- ARGV[1] token, [2] boot, [3] kind of crash ('' for an orderly end), [4] its message, [5] maximum crashes, [6] window
-- in ms (0: crashes are not counted), [7] name of this crash, [8] worker's name ('' if no job can have started)
-- Returns go · quarantine, its crashes
local time = redis.call('TIME')
local now = math.floor((time[1] * 1000000 + time[2]) / 1000)
if release(KEYS[4], ARGV[1], now) then
  note_overrun(KEYS[2], 1)
end
if ARGV[3] == '' then
  note_end(KEYS[1], KEYS[2], ARGV[1])
  return { 'go' }
end
local window = tonumber(ARGV[6])
if window > 0 then
  local unseen = ARGV[8] ~= '' and { at = now, boot = ARGV[2], worker = ARGV[8], alone = false } or nil
  note_crash(KEYS[1], KEYS[2], ARGV[1], ARGV[7], ARGV[3], ARGV[4], unseen, now)
  local boots = { key = KEYS[3], prefix = string.sub(KEYS[2], 1, #KEYS[2] - #ARGV[2]) }
  local is = known(KEYS[1], boots, ARGV[2], window, now)
  if is_poison(is.crashes, tonumber(ARGV[5])) then
    return quarantine(KEYS[1], is.crashes)
  end
end
return { 'go' }
