-- Keeps the highest number of a pod's claims after the pod, so that a later claim has a higher one, and a
-- writer of an earlier claim that wakes up finds none of its own.
--
-- KEYS  the pod's fence
-- ARGV  the highest number that a bucket has of the pod, the fence's life (ms)
-- Returns the fence's number.
local stored = redis.call('GET', KEYS[1])
local token = tonumber(ARGV[1])
-- Numbers that no writer can have reached count as none (indexer/shared/layout/damage.py).
if stored and #stored <= 12 and string.find(stored, '^%d+$') then token = math.max(token, tonumber(stored)) end
-- At the memory limit Redis refuses only a script's first write, and never a DEL.
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], string.format('%.0f', token), 'PX', ARGV[2])
return token
