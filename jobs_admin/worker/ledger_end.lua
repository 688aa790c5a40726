-- Remove an ended job whose reports are written.
-- KEYS[1] jobs that its boot stores, [2] those of them filed as lost, [3] the stream of reports, [4] its number of
-- bytes
-- ARGV[1] the job, [2…] the report of its success; none if it was reported otherwise
-- Returns 'removed' · 'lost': it was filed as lost, and no longer is · 'none'
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
