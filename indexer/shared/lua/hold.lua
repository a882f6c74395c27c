-- Sets a lease to a new value, if it has the expected one. Returns the value that it has then; empty for none.
-- KEYS: the lease. ARGV: expected value, empty for none; new value, milliseconds.
local value = redis.call('GET', KEYS[1]) or ''
if value ~= ARGV[1] then
  return value
end
-- At the memory limit only a script's first write can be refused, and this one never is: it is the sweep
-- that makes room.
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return ARGV[2]
