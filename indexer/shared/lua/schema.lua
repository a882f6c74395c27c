-- Writes the schema of the keys under a prefix where there is none yet, and returns the one that is there.
--
-- KEYS[1]   the hash of the schema
-- ARGV      its fields and values
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], unpack(ARGV))
end
return redis.call('HGETALL', KEYS[1])
