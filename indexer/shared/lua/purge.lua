-- Removes dead slots, which no claim names any more, from some fields of one bucket. Readers ignore such
-- slots, so they see no difference.
--
-- KEYS  the bucket
-- ARGV  the dead slots (8 bytes each), then fields: segments, and blocks of spilled segments
-- Returns how many fields changed. The work grows with the bytes of the fields' values; the caller bounds
--       them (indexer/shared/writer/calls.py). Values are as in indexer/keys/segment_value.py.

local KEY = "........"
local byte, char, sub, rep, floor = string.byte, string.char, string.sub, string.rep, math.floor
local band, bor, lshift = bit.band, bit.bor, bit.lshift

local bucket = KEYS[1]
local dead = {}
for slot in string.gmatch(ARGV[1], KEY) do dead[slot] = true end

local function pair(low)
  return char(low % 256, floor(low / 256))
end

-- Returns what is left of a packed value: the value itself where no slot in it is dead; false where
-- nothing is left.
local function purge(value)
  local columns = byte(value, 3) + 256 * byte(value, 4)
  local slots, kept = {}, {}
  for column = 0, columns - 1 do
    local slot = sub(value, 5 + 8 * column, 12 + 8 * column)
    if not dead[slot] then
      slots[#slots + 1], kept[#kept + 1] = slot, column
    end
  end
  if #kept == columns then return value end
  if #kept == 0 then return false end
  local rest = setmetatable({}, {__index = function(known, bits)
    local bytes = {}
    for at = 1, floor((#kept + 7) / 8) do bytes[at] = 0 end
    for to, from in ipairs(kept) do
      if band(byte(bits, floor(from / 8) + 1), lshift(1, from % 8)) ~= 0 then
        local at = floor((to - 1) / 8) + 1
        bytes[at] = bor(bytes[at], lshift(1, (to - 1) % 8))
      end
    end
    for at, value in ipairs(bytes) do bytes[at] = char(value) end
    known[bits] = table.concat(bytes)
    return known[bits]
  end})
  local zero = rep("\0", floor((#kept + 7) / 8))
  local record = "(" .. KEY .. ")(" .. rep(".", floor((columns + 7) / 8)) .. ")"
  local body = string.gsub(sub(value, 5 + 8 * columns), record, function(key, bits)
    return rest[bits] == zero and "" or key .. rest[bits]
  end)
  return "\1\0" .. pair(#kept) .. table.concat(slots) .. body
end

local changed, gone = 0, {}
-- At the memory limit Redis refuses only a script's first write, and never an HDEL. This one removes
-- nothing, since no field has this name.
redis.call("HDEL", bucket, "")
for at = 2, #ARGV do
  local field = ARGV[at]
  local value = redis.call("HGET", bucket, field)
  if value and byte(value) == 1 then
    local left = purge(value)
    if left ~= value then
      changed = changed + 1
      if left then
        redis.call("HSET", bucket, field, left)
      else
        redis.call("HDEL", bucket, field)
        if #field == 16 then
          local segment = sub(field, 1, 8)
          gone[segment] = (gone[segment] or 0) + 1
        end
      end
    end
  end
end
for segment, count in pairs(gone) do
  local value = redis.call("HGET", bucket, segment)
  if value and byte(value) == 2 then
    local blocks = struct.unpack("<I4", value, 5) - count
    if blocks > 0 then
      redis.call("HSET", bucket, segment, "\2\0\0\0" .. struct.pack("<I4", blocks))
    else
      redis.call("HDEL", bucket, segment)
    end
  end
end
return changed
