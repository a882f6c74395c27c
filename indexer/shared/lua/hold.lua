-- Sets a lease to a new value, if it has the expected one. Returns 1, or 0 where it has another.
-- KEYS: the lease. ARGV: expected value, new value, milliseconds.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
