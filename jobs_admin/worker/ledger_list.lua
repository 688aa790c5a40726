-- Return the names of the jobs that a boot stores.
-- KEYS[1] jobs that it stores
return redis.call('HKEYS', KEYS[1])
