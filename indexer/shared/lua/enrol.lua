-- Notes by the server's clock that a router runs, and forgets routers that stopped long ago.
--
-- KEYS  the hash of routers
-- ARGV  the router; for how long after its last note a router counts as running, and for how long it
--       stays in the hash (ms)
-- Returns the routers that run.
if redis.replicate_commands then
  redis.replicate_commands()  -- Redis 6 needs it where a script writes after it has asked for the time
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local there, listed = tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now))
local found = {}
local all = redis.call('HGETALL', KEYS[1])
for at = 1, #all, 2 do
  -- A time in the future was noted before the server's clock was set back; what is no time was not noted.
  local age = math.abs(now - (tonumber(all[at + 1]) or 0))
  if age <= there then
    found[#found + 1] = all[at]
  elseif not (age <= listed) then
    redis.call('HDEL', KEYS[1], all[at])
  end
end
redis.call('PEXPIRE', KEYS[1], 2 * listed)
return found
