-- Claims a pod for one writer. The newest claim wins: the writes of every earlier one are refused.
--
-- KEYS  the pod's record, its fence
-- ARGV  the writer, the claim's base, 1 where another writer's claim is to be taken over, the highest
--       token that the writer saw in a bucket, the lease and the fence's life (ms), the reason why the
--       index is not sound
-- Returns {1, token}, also where an earlier call made this claim; {0, token} where another writer has the
--         record.
--
-- The record goes on describing the earlier claim's content until the new claim's is complete. A number that
-- no writer can have reached counts as none (indexer/shared/layout/damage.py).
local function known(number)
  return number and #number <= 12 and string.find(number, '^%d+$') and tonumber(number) or 0
end
local record, fence = KEYS[1], KEYS[2]
local said = redis.call('HMGET', record, 'token', 'owner', 'building')
local token = known(said[1])
if said[2] and said[2] ~= ARGV[1] and ARGV[3] ~= '1' then
  return {0, token}
end
if said[2] == ARGV[1] and said[3] == ARGV[2] then
  redis.call('PEXPIRE', record, ARGV[5])
  return {1, token}
end
token = math.max(token, known(redis.call('GET', fence)), known(ARGV[4])) + 1
redis.call('SET', fence, token, 'PX', ARGV[6])
redis.call('HSET', record, 'token', token, 'owner', ARGV[1], 'building', ARGV[2], 'audits', 0, 'reason', ARGV[7])
redis.call('HDEL', record, 'sound')
redis.call('PEXPIRE', record, ARGV[5])
return {1, token}
