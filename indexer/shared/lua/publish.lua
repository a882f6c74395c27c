-- Puts a claim's content, which is complete now, into the pod's record in place of the earlier claim's. The
-- claim's first audit makes it sound.
--
-- KEYS  the pod's record, its log
-- ARGV  the claim's token and base, its writer, the journal's sequence, the lease (ms), then fields of
--       the record and their values: the claim, states, blocks
-- Returns {1}; {0} where an earlier call did it; {-1, token} where another claim has the record; {-3}
--         where there is no record.
local record, log = KEYS[1], KEYS[2]
local said = redis.call('HMGET', record, 'token', 'building')
if not said[1] then return {-3} end
if said[1] ~= ARGV[1] then return {-1, tonumber(said[1])} end
if said[2] ~= ARGV[2] then return {0} end
local kept = {token = true, owner = true, applied = true, audits = true}
for at = 6, #ARGV, 2 do kept[ARGV[at]] = true end
redis.call('HSET', record, 'owner', ARGV[3], 'applied', ARGV[4], 'audits', 0, unpack(ARGV, 6))
for _, field in ipairs(redis.call('HKEYS', record)) do
  if not kept[field] then redis.call('HDEL', record, field) end
end
redis.call('UNLINK', log)
redis.call('PEXPIRE', record, ARGV[5])
return {1}
