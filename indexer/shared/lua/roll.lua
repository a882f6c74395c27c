-- Notes by the server's clock when pods had a record, and returns those that have had none for too long.
-- A pod without a record that is not in the hash yet is noted as if it had one.
-- KEYS: the hash of pods. ARGV: for how many milliseconds a pod without a record is remembered; the number
-- of pods with a record; those pods; the pods without one.
-- Returns the pods that are to be forgotten, each followed by its value.
if redis.replicate_commands then
  redis.replicate_commands()  -- Redis 6 needs it where a script writes after it has asked for the time
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local remembered = tonumber(ARGV[1])
local there = tonumber(ARGV[2])
local stamp = string.format('%.0f', now)
local old = {}
-- At the memory limit Redis refuses only a script's first write, and never an HDEL. This one removes
-- nothing, since no pod has this name.
redis.call('HDEL', KEYS[1], '')
for i = 3, #ARGV do
  local seen = redis.call('HGET', KEYS[1], ARGV[i])
  local age = seen and now - (tonumber(seen) or 0)
  -- A time in the future was noted before the server's clock was set back, or not by a sweep.
  if age and not (age >= 0) then age = nil end
  if i < 3 + there then
    -- A noted time may be old by a tenth of the time for which a pod is remembered; that spares a write
    -- in each pass.
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
