-- Sets a lease to a new value, if it has the expected one. Returns the lease's value afterwards; empty
-- where there is no lease.
-- KEYS: the lease. ARGV: expected value, empty for no lease; new value; milliseconds until it runs out.
local value = redis.pcall('GET', KEYS[1]) or ''
local left = redis.call('PTTL', KEYS[1])
-- What is no text, or never runs out, or not for an hour, no process of ours has set.
if type(value) == 'table' or left == -1 or left > 3600000 then
  value = ''
end
if value ~= ARGV[1] then
  return value
end
-- At the memory limit Redis refuses only a script's first write, and never a DEL. So a process can take
-- the lease there too, and its sweep makes room.
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return ARGV[2]
