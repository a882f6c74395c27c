-- Removes those keys that are of another type than warmpath's own, as after a command by hand.
--
-- KEYS  keys of one hash tag
-- ARGV  for each key the command that Redis refuses where the key is of another type (HLEN, GET, XLEN): the
--       ACL rule has no TYPE
-- Returns the places of the removed keys among KEYS, from 1 on.
local removed = {}
for at, key in ipairs(KEYS) do
  local reply = redis.pcall(ARGV[at], key)
  if type(reply) == 'table' and reply.err and string.find(reply.err, 'WRONGTYPE', 1, true) then
    redis.call('UNLINK', key)
    removed[#removed + 1] = at
  end
end
return removed
