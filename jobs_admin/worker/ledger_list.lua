-- The jobs that a boot keeps, by name. KEYS[1] what it keeps
return redis.call('HKEYS', KEYS[1])
