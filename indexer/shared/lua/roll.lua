-- Notes by the server's clock which pods were there, and tells which have been gone for too long.
-- KEYS: the hash of pods. ARGV: milliseconds that a pod is remembered, how many are there, those, the others.
-- Returns the others that are to be forgotten, each followed by its value.
if redis.replicate_commands then
  redis.replicate_commands()  -- Redis 6 needs it where a script writes after it has asked for the time
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local remembered = tonumber(ARGV[1])
local there = tonumber(ARGV[2])
local stamp = string.format('%.0f', now)
local old = {}
-- At the memory limit only a script's first write can be refused, and this one never is.
redis.call('HDEL', KEYS[1], '')
for i = 3, #ARGV do
  local seen = redis.call('HGET', KEYS[1], ARGV[i])
  local age = seen and now - (tonumber(seen) or 0)
  if i < 3 + there then
    -- A tenth of the time is near enough, and spares a write in each pass.
    if not age or age > remembered / 10 then
      redis.call('HSET', KEYS[1], ARGV[i], stamp)
    end
  elseif not age then
    redis.call('HSET', KEYS[1], ARGV[i], stamp)
  elseif age > remembered then
    old[#old + 1] = ARGV[i]
    old[#old + 1] = seen
  end
end
return old
