-- Writes the schema of the keys under a prefix where there is none yet, and returns the one that is there.
-- A key that names no version, which no version of warmpath writes, counts as none.
--
-- KEYS[1]   the hash of the schema
-- ARGV      its fields and values
local version = redis.pcall('HGET', KEYS[1], 'schema')
if type(version) == 'table' and not string.find(version.err, 'WRONGTYPE', 1, true) then
  return version
end
if type(version) ~= 'string' or not string.find(version, '^%d+$') then
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], unpack(ARGV))
end
return redis.call('HGETALL', KEYS[1])
