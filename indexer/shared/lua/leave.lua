-- Forgets pods that nobody has claimed since they were looked at.
-- KEYS: the hash of pods. ARGV: pairs of a pod and the value that it had. Returns how many are forgotten.
local gone = 0
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    gone = gone + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return gone
