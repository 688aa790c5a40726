-- Read jobs of one queue, as many as fit.
-- KEYS[1] base of the queue's keys; ARGV[1] bytes after which to stop, ARGV[2] maximum size of a field that is read,
-- ARGV[3] number of field names, these, then the ids
-- Returns for each job reached a list: bytes of its data, then the fields' values (nil if missing or too large).
local names, answers, read = {}, {}, 0
for i = 1, tonumber(ARGV[3]) do
  names[i] = ARGV[3 + i]
end
for i = 4 + #names, #ARGV do
  if read > tonumber(ARGV[1]) then
    break
  end
  local key, wanted, size = KEYS[1] .. ARGV[i], {}, 0
  local answer = {0}
  if redis.call('TYPE', key).ok == 'hash' then
    for n, name in ipairs(names) do
      local length = redis.call('HSTRLEN', key, name)
      if name == 'data' then
        answer[1] = length
      end
      if length > 0 and length <= tonumber(ARGV[2]) then
        wanted[#wanted + 1], size = n, size + length
      end
    end
    for n = 1, #names do
      answer[n + 1] = false
    end
    for _, n in ipairs(wanted) do
      answer[n + 1] = redis.call('HGET', key, names[n])
    end
  end
  read = read + size
  answers[#answers + 1] = answer
end
return answers
