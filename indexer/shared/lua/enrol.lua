-- Notes by the server's clock that a router is there, and forgets those that have long been gone.
--
-- KEYS  the hash of routers
-- ARGV  the router, how long one that is not heard of counts as there, and how long it is listed (ms)
-- Returns the routers that are there.
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
  -- A time to come is of a clock that was set back since.
  local age = math.abs(now - tonumber(all[at + 1]))
  if age <= there then
    found[#found + 1] = all[at]
  elseif age > listed then
    redis.call('HDEL', KEYS[1], all[at])
  end
end
redis.call('PEXPIRE', KEYS[1], 2 * listed)
return found
