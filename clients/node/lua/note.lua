-- What was decided over an attempt, beside the job that it was about, while BullMQ has that. KEYS[1] the job's hash. ARGV[1] the note.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return redis.call('HSET', KEYS[1], 'redriveNote', ARGV[1])
end
return 0
