-- Deletes the checkpoints of pods that have no record, unless one of the pods was claimed since.
-- KEYS: a bucket. ARGV: at most some hundred triples of a checkpoint's field, the highest token that the
-- caller knows of the pod, and 1 where the pod has no record, 0 where it has one.
-- Returns how many were deleted; -1, with nothing done, where a stored token is higher than the known
-- one, or cannot be read.
local fields, doomed = {}, {}
for i = 1, #ARGV, 3 do fields[#fields + 1] = ARGV[i] end
for at, stored in ipairs(redis.call('HMGET', KEYS[1], unpack(fields))) do
  if stored then
    local token = tonumber(string.match(stored, '^(%d+):'))
    if not token or token > tonumber(ARGV[3 * at - 1]) then
      return -1
    end
    if ARGV[3 * at] == '1' then
      doomed[#doomed + 1] = fields[at]
    end
  end
end
if #doomed > 0 then
  redis.call('HDEL', KEYS[1], unpack(doomed))
end
return #doomed
