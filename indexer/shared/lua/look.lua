-- Reads figures of the node on which a bucket lies.
-- KEYS: a bucket.
-- Returns INFO's sections server and memory, and the bucket's bytes; nil in the place of each that the
-- ACL user may not read.
local function asked(...)
  local reply = redis.pcall(...)
  return not (type(reply) == 'table' and reply.err) and reply
end
return {
  asked('INFO', 'server'),
  asked('INFO', 'memory'),
  asked('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', 20),
}
