-- Tells of the node on which a bucket lies, as far as the user may ask.
-- KEYS: a bucket.
-- Returns INFO's sections server and memory, and the bucket's bytes; nothing where one may not be asked.
local function asked(...)
  local reply = redis.pcall(...)
  return not (type(reply) == 'table' and reply.err) and reply
end
return {
  asked('INFO', 'server'),
  asked('INFO', 'memory'),
  asked('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', 20),
}
