-- Removes pods from the hash of pods, but none that was claimed since the caller read its value.
-- KEYS: the hash of pods. ARGV: pairs of a pod and the value that the caller read; enlist.lua and roll.lua
-- change it. Returns how many pods were removed.
local gone = 0
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    gone = gone + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return gone
