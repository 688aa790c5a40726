-- A job has ended, and whatever there was to tell of it was told.
-- KEYS[1] what its boot keeps, [2] those of it that were filed as lost, [3] the stream of reports, [4] how many bytes that holds
-- ARGV[1] the job, [2…] the report of its success; none where it was told otherwise
-- Answers 'removed' · 'lost': it had been filed as that, and is not any more · 'none'
if redis.call('HDEL', KEYS[1], ARGV[1]) == 1 then
  return 'removed'
end
if redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 0 then
  return 'none'
end
if #ARGV > 1 then
  report(KEYS[3], KEYS[4], { unpack(ARGV, 2) })
end
redis.call('SREM', KEYS[2], ARGV[1])
return 'lost'
