-- Hands reports on to the router that has their bookings.
--
-- KEYS  the stream of that router
-- ARGV  about how many entries the stream keeps, how long the stream outlives its last entry (ms), then
--       the reports
-- Returns how many reports were added.
for at = 3, #ARGV do
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'report', ARGV[at])
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return #ARGV - 2
