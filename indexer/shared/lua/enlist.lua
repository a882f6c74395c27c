-- Puts a pod into the hash of pods, with the time by the server's clock.
--
-- KEYS  the hash of pods
-- ARGV  the pod
-- Returns 1 where the pod was not in it, else 0.
if redis.replicate_commands then
  redis.replicate_commands()  -- Redis 6 needs it where a script writes after it has asked for the time
end
local time = redis.call('TIME')
return redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
