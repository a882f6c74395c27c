-- Renews a pod's lease, after its writer found every bucket as it had left it.
--
-- KEYS  the pod's record
-- ARGV  the claim's token, the journal's sequence, the audits of this claim so far, the lease (ms)
-- Returns {1}; {-1, token} where another claim has the record; {-2} where the record is not as the writer
--         left it; {-3} where there is no record.
local record = KEYS[1]
local said = redis.call('HMGET', record, 'token', 'applied', 'building', 'audits')
if not said[1] then return {-3} end
if said[1] ~= ARGV[1] then return {-1, tonumber(said[1])} end
if said[3] or said[2] ~= ARGV[2] then return {-2} end
-- A renewal that arrives late or twice counts no audit again.
if tonumber(said[4] or 0) < tonumber(ARGV[3]) then
  redis.call('HSET', record, 'audits', ARGV[3], 'sound', 1)
  redis.call('HDEL', record, 'reason')
end
redis.call('PEXPIRE', record, ARGV[4])
return {1}
