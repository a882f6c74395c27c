-- Hands reports on to the router that has their bookings.
--
-- KEYS  the stream of that router
-- ARGV  how many entries the stream keeps, how long the stream outlives its last entry (ms), then the
--       reports
-- Returns how many of the first reports were added: those that the stream has room for.
local most = math.min(#ARGV, 2 + math.max(0, ARGV[1] - redis.call('XLEN', KEYS[1])))
for at = 3, most do
  redis.call('XADD', KEYS[1], '*', 'report', ARGV[at])
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return most - 2
