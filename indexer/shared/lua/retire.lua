-- Deletes the checkpoints of pods that have no record, unless one of the pods was claimed since.
-- KEYS: a bucket. ARGV: triples of a checkpoint's field, the highest token that the caller knows of the pod,
-- and 1 where the pod has no record, 0 where it has one.
-- Returns how many were deleted; -1, with nothing done, where a stored token is higher than the known
-- one, or cannot be read.
local doomed = {}
for i = 1, #ARGV, 3 do
  local stored = redis.call('HGET', KEYS[1], ARGV[i])
  if stored then
    local token = tonumber(string.match(stored, '^(%d+):'))
    if not token or token > tonumber(ARGV[i + 1]) then
      return -1
    end
    if ARGV[i + 2] == '1' then
      doomed[#doomed + 1] = ARGV[i]
    end
  end
end
for _, field in ipairs(doomed) do
  redis.call('HDEL', KEYS[1], field)
end
return #doomed
