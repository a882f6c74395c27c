-- Renews a pod's lease, and confirms by how much the index may be behind the engine.
--
-- KEYS  the pod's record
-- ARGV  the claim's token, the journal's sequence, the audits of this claim so far, the lease (ms), the
--       confirmations of this claim so far, by how many ms the index was behind the engine when the writer
--       sent this, and the least that this server's clock can have shown then (ms; empty: not known)
-- Returns {1, the server's time (ms)}; {-1, token} where another claim has the record; {-2} where the record
--         is not as the writer left it; {-3} where there is no record.
if redis.replicate_commands then
  redis.replicate_commands()  -- Redis 6 needs it where a script writes after it has asked for the time
end
local record = KEYS[1]
local said = redis.call('HMGET', record, 'token', 'applied', 'building', 'audits', 'sound')
if not said[1] then return {-3} end
if said[1] ~= ARGV[1] then return {-1, tonumber(said[1])} end
if said[3] or said[2] ~= ARGV[2] then return {-2} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- A renewal that arrives twice counts no audit again, and one that others have overtaken does nothing.
local audits = tonumber(said[4] or 0)
local confirmed = tonumber(string.match(said[5] or '', '^%d+') or 0)
if not audits or audits > tonumber(ARGV[3]) or confirmed > tonumber(ARGV[5]) then return {-2} end
local audited = audits < tonumber(ARGV[3])
if audited then
  redis.call('HSET', record, 'audits', ARGV[3])
  redis.call('HDEL', record, 'reason')
end
-- How long this call took on its way counts as well. Where the clock was set back nobody knows it.
local late = ARGV[7] ~= '' and now - tonumber(ARGV[7])
if late and late > -10 and (audited or said[5]) and confirmed < tonumber(ARGV[5]) then
  redis.call('HSET', record, 'sound', string.format('%s:%.0f', ARGV[5], ARGV[6] + math.max(late, 0)))
end
redis.call('PEXPIRE', record, ARGV[4])
return {1, now}
