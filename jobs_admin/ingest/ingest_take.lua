-- Entries of streams, in turns: one of each that has more, again and again, until there are enough. So none waits for a longer one.
-- KEYS: the streams, in the order of their turns. What is no stream is left out.
-- ARGV[1] group, [2] consumer, [3] '>' for new entries, '0' for those that this consumer took before, [4] most entries,
-- [5] bytes after which no more are taken
-- Answers for each entry: which stream (from 1), id, fields (none of one that was deleted since). An error where the server
-- refuses the first read, such as without space on its disk: else it would look as if nothing waited.
local group, consumer, from = ARGV[1], ARGV[2], ARGV[3]
local taken, bytes = {}, 0

local function one_of(stream, after)
  local answer = redis.pcall('XREADGROUP', 'GROUP', group, consumer, 'COUNT', 1, 'STREAMS', stream, after)
  if answer and answer.err then
    if string.sub(answer.err, 1, 7) ~= 'NOGROUP' then
      return nil, answer
    end
    redis.pcall('XGROUP', 'CREATE', stream, group, '0') -- the first time, or the store came back empty
    answer = redis.pcall('XREADGROUP', 'GROUP', group, consumer, 'COUNT', 1, 'STREAMS', stream, after)
  end
  if answer and answer.err then
    return nil, answer
  end
  return answer and answer[1] and answer[1][2][1]
end

local turns = {}
for at, stream in ipairs(KEYS) do
  if redis.call('TYPE', stream).ok == 'stream' then
    turns[#turns + 1] = { at = at, stream = stream, after = from }
  end
end
while #turns > 0 do
  local left = {}
  for _, turn in ipairs(turns) do
    if #taken >= tonumber(ARGV[4]) or bytes >= tonumber(ARGV[5]) then
      return taken
    end
    local entry, refusal = one_of(turn.stream, turn.after)
    if refusal and #taken == 0 then
      return refusal
    end
    if entry then
      local fields = entry[2] or {}
      for _, text in ipairs(fields) do
        bytes = bytes + #text
      end
      taken[#taken + 1] = { turn.at, entry[1], fields }
      if from ~= '>' then
        turn.after = entry[1]
      end
      left[#left + 1] = turn
    end
  end
  turns = left
end
return taken
