-- Renews a pod's lease without an audit. With a reason, the record says from then on that the index may
-- differ from what the publisher holds.
--
-- KEYS  the pod's record
-- ARGV  the claim's token, the lease (ms), the reason why the index may not be sound; empty: leave that as
--       it is
-- Returns {1}; {-1, token} where another claim has the record; {-3} where there is no record.
local record = KEYS[1]
local token = redis.call('HGET', record, 'token')
if not token then return {-3} end
if token ~= ARGV[1] then return {-1, tonumber(token)} end
redis.call('PEXPIRE', record, ARGV[2])
if ARGV[3] ~= '' then
  -- In this order: should the memory limit refuse the reason, the record is unsound all the same.
  redis.call('HDEL', record, 'sound')
  redis.pcall('HSET', record, 'reason', ARGV[3])
end
return {1}
