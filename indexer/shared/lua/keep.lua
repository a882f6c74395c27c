-- Keeps a pod's record between audits; where its index may not be what the publisher says, says so.
--
-- KEYS  the pod's record
-- ARGV  the claim's token, the lease (ms), why it may not be sound; empty where it is as sound as it was
-- Returns {1}; {-1, token} where another claim has the record; {-3} where there is no record.
local record = KEYS[1]
local token = redis.call('HGET', record, 'token')
if not token then return {-3} end
if token ~= ARGV[1] then return {-1, tonumber(token)} end
redis.call('PEXPIRE', record, ARGV[2])
if ARGV[3] ~= '' then
  -- In this order: at the memory limit only the last is refused.
  redis.call('HDEL', record, 'sound')
  redis.pcall('HSET', record, 'reason', ARGV[3])
end
return {1}
