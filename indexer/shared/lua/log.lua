-- Adds a batch of changes to a pod's log and record, after the writer has written it to every bucket.
--
-- KEYS  the pod's record, its log
-- ARGV  the claim's token, the sequence before the batch, the batch's first and last sequence, its deltas,
--       the first entry of the log that is kept, the lease (ms), then fields of the record and their
--       values: states, blocks, and the claim where its places changed
-- Returns {1}; {0} where an earlier call did it; {-1, token} where another claim has the record; {-2}
--         where the record or the log is not as the writer left it; {-3} where there is no record.
local record, log = KEYS[1], KEYS[2]
local said = redis.call('HMGET', record, 'token', 'applied', 'building')
if not said[1] then return {-3} end
if said[1] ~= ARGV[1] then return {-1, tonumber(said[1])} end
if said[2] == ARGV[4] then return {0} end
if said[3] or said[2] ~= ARGV[2] then return {-2} end
-- XADD comes first: where the memory limit refuses it, nothing has changed yet.
local added = redis.pcall('XADD', log, 'MINID', '~', ARGV[6], ARGV[4] .. '-0', 'first', ARGV[3], 'deltas', ARGV[5])
if type(added) == 'table' and added.err then
  if string.find(added.err, 'equal or smaller', 1, true) then return {-2} end
  return added
end
redis.call('HSET', record, 'applied', ARGV[4], unpack(ARGV, 8))
redis.call('PEXPIRE', record, ARGV[7])
redis.call('PEXPIRE', log, ARGV[7] * 10)
return {1}
