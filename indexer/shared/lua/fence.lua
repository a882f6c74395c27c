-- Takes one bucket for a claim: from then on apply.lua refuses the writes of earlier claims. A bucket
-- without the field "born" gets the present time there, so that readers can tell a bucket that was lost
-- and made anew from the one before.
--
-- KEYS  the bucket
-- ARGV  the pod's checkpoint field, the claim's token, the bucket's time to live (ms)
-- Returns {status, stored token, stored count}: 1 taken; 0 the claim had the bucket already; -1 a later
--       claim has it.

if redis.replicate_commands then
  redis.replicate_commands()  -- Redis 6 needs it where a script writes after it has asked for the time
end
local read = redis.call("HMGET", KEYS[1], ARGV[1], "born")
local stored, born = read[1], read[2]
-- A checkpoint that no writer can have written is replaced (indexer/shared/layout/damage.py).
local token, count = string.match(stored or "", "^(%d+):(%d+)$")
if token and #token <= 12 and #count <= 12 then
  token, count = tonumber(token), tonumber(count)
  if token > tonumber(ARGV[2]) then return {-1, token, count} end
  if token == tonumber(ARGV[2]) then return {0, token, count} end
end
born = born or table.concat(redis.call("TIME"), ".")
redis.call("HSET", KEYS[1], ARGV[1], ARGV[2] .. ":0", "born", born)
redis.call("PEXPIRE", KEYS[1], ARGV[3])
return {1, tonumber(ARGV[2]), 0}
