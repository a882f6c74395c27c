-- Renews a pod's lease, and confirms that the index has what the publisher says.
--
-- KEYS  the pod's record
-- ARGV  the claim's token, the journal's sequence, the audits of this claim so far, the lease (ms), the
--       confirmations of this claim so far, and by how many ms the index was behind the engine at most when
--       the confirmation before this one came here (empty: not known)
-- Returns {1}; {-1, token} where another claim has the record; {-2} where the record is not as the writer
--         left it; {-3} where there is no record.
local record = KEYS[1]
local said = redis.call('HMGET', record, 'token', 'applied', 'building', 'audits', 'sound')
if not said[1] then return {-3} end
if said[1] ~= ARGV[1] then return {-1, tonumber(said[1])} end
if said[3] or said[2] ~= ARGV[2] then return {-2} end
-- A renewal that arrives twice counts no audit again, and one that others have overtaken does nothing.
local audits = tonumber(said[4] or 0)
local confirmed = tonumber(string.match(said[5] or '', '^%d+') or 0)
if not audits or audits > tonumber(ARGV[3]) or confirmed > tonumber(ARGV[5]) then return {-2} end
local audited = audits < tonumber(ARGV[3])
if audited then
  redis.call('HSET', record, 'audits', ARGV[3])
  redis.call('HDEL', record, 'reason')
end
if (audited or said[5]) and confirmed < tonumber(ARGV[5]) then
  -- Nothing is said of a confirmation that readers cannot have seen here.
  local known = said[5] and confirmed == tonumber(ARGV[5]) - 1 and ARGV[6] ~= ''
  redis.call('HSET', record, 'sound', known and ARGV[5] .. ':' .. ARGV[6] or ARGV[5])
end
redis.call('PEXPIRE', record, ARGV[4])
return {1}
