-- Precedes the scripts that write in queues of Bull. Redis checks the rights of a command before it looks at the key, and
-- does not roll a script back: so each command of a script is first run in each queue where it changes nothing.
-- Return the first error that is none of a wrong type, or nil; `NOPERM …` for a missing right, which servers word differently. `base`: of the queue's keys.
local function why_no_right(base)
  local probe = base .. 'redrive:may-write'
  for _, command in ipairs({
    {'HSET', probe, 'a', '1'}, {'HDEL', probe, 'b'}, {'ZADD', probe, '0', 'a'}, {'ZREM', probe, 'a'}, {'LPUSH', probe, 'a'},
    {'RPUSH', probe, 'a'}, {'PUBLISH', probe, ''}, {'SET', probe, '', 'EX', '1'}, {'DEL', probe},
  }) do
    local answer = redis.pcall(unpack(command))
    if type(answer) == 'table' and answer.err and not string.find(answer.err, 'WRONGTYPE', 1, true) then
      redis.pcall('DEL', probe)
      for _, state in ipairs({'OOM', 'READONLY', 'MISCONF', 'NOREPLICAS'}) do
        if string.find(answer.err, state, 1, true) then
          return answer.err
        end
      end
      return 'NOPERM ' .. answer.err
    end
  end
end

