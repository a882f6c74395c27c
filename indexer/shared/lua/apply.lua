-- Applies a writer's changes to one bucket exactly once. It counts the write in the writer's checkpoint, and in
-- the field "writes" among those of all writers, so that readers can tell when Redis goes back to old data.
--
-- KEYS  the bucket
-- ARGV  the writer's checkpoint field, its token, its count of writes before and after this one, the
--       bucket's time to live (ms), then for each change: segment, slot, added keys, gone keys.
--       Segments, slots and keys have 8 bytes each; the keys of a change are distinct.
-- Returns {status, stored token, stored count}: 1 applied; 0 an earlier call applied it; -1 a later claim
--       has this bucket; -2 the bucket is not as this writer left it.
-- Values are as in indexer/keys/segment_value.py. The script computes everything before its first write, and
-- at the memory limit only the first write can fail, so a call has its whole effect or none. A call
-- that only removes keys begins with PEXPIRE, which Redis never refuses, so it works at the memory
-- limit too.

local MOST = 512 -- the most records of a packed segment
local byte, char, find, sub, floor = string.byte, string.char, string.find, string.sub, math.floor
local band, lshift = bit.band, bit.lshift

local bucket, checkpoint, token, after = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])
local fields = {}
for at = 6, #ARGV, 4 do fields[#fields + 1] = ARGV[at] end
local read = redis.call("HMGET", bucket, checkpoint, "writes", unpack(fields))

local stored_token, stored_count = string.match(read[1] or "", "^(%d+):(%d+)$")
if not stored_token or #stored_token > 12 or #stored_count > 12 then return {-2, 0, 0} end
stored_token, stored_count = tonumber(stored_token), tonumber(stored_count)
if stored_token > token then return {-1, stored_token, stored_count} end
if stored_token < token or stored_count ~= tonumber(ARGV[3]) then
  local before = stored_token == token and stored_count >= after
  return {before and 0 or -2, stored_token, stored_count}
end

-- A number that no writer can have reached counts as none (indexer/shared/layout/damage.py).
local writes = read[2] and #read[2] <= 12 and find(read[2], "^%d+$") and tonumber(read[2]) or 0
writes = string.format("%.0f", writes + 1)

-- The fast path for one key of a packed segment in which the slot occurs before and after: most calls of a
-- busy engine. The functions further down do the same, but creating them takes longer than this.
local value = read[3]
if #ARGV == 9 and #ARGV[8] + #ARGV[9] == 8 and value and byte(value) == 1 then
  local slot, key, adds = ARGV[7], ARGV[8] .. ARGV[9], ARGV[9] == ""
  local columns = byte(value, 3) + 256 * byte(value, 4)
  local width, first = floor((columns + 7) / 8), 5 + 8 * columns
  local step = 8 + width
  local start = find(value, slot, 5, true)
  while start and start % 8 ~= 5 do start = find(value, slot, start + 1, true) end
  local column = start and start < first and (start - 5) / 8
  local record = column and find(value, key, first, true)
  while record and (record - first) % step ~= 0 do record = find(value, key, record + 1, true) end
  local new
  if column then
    local at, mask = 8 + floor(column / 8), lshift(1, column % 8)
    if not record then
      if not adds then
        new = value
      elseif #value - first + 1 < MOST * step then
        new = value .. key .. string.rep("\0", at - 8) .. char(mask) .. string.rep("\0", step - at - 1)
      end
    else
      local old = byte(value, record + at)
      if (band(old, mask) ~= 0) == adds then
        new = value
      elseif adds then
        new = sub(value, 1, record + at - 1) .. char(old + mask) .. sub(value, record + at + 1)
      elseif record ~= first and band(byte(value, first + at), mask) ~= 0 then
        -- The slot holds another key of the segment, so its column stays.
        new = sub(value, 1, record + at - 1) .. char(old - mask) .. sub(value, record + at + 1)
        if not find(new, "[^%z]", record + 8) or find(new, "[^%z]", record + 8) >= record + step then
          new = sub(value, 1, record - 1) .. sub(value, record + step)
        end
      end
    end
  end
  if new then
    local stamp = ARGV[2] .. ":" .. ARGV[4]
    if not adds then redis.call("PEXPIRE", bucket, ARGV[5]) end
    redis.call("HSET", bucket, checkpoint, stamp, "writes", writes, ARGV[6], new)
    if adds then redis.call("PEXPIRE", bucket, ARGV[5]) end
    return {1, token, after}
  end
end

local KEY = "........"
local gmatch, gsub, rep, bor = string.gmatch, string.gsub, string.rep, bit.bor

-- The value of each field after the changes; false for a field that is not there.
local values, changed = {}, {}
for at, field in ipairs(fields) do values[field] = read[at + 2] end

local function get(field)
  if values[field] == nil then values[field] = redis.call("HGET", bucket, field) end
  return values[field]
end

local function put(field, value)
  if values[field] ~= value then
    values[field] = value
    changed[field] = true
  end
end

-- Returns the position at a multiple of `step` bytes where `word` begins in `text`; nil where it does not.
local function place(text, word, step)
  local at = find(text, word, 1, true)
  while at and (at - 1) % step ~= 0 do at = find(text, word, at + 1, true) end
  return at
end

-- Returns a table that remembers the result of `make` for each bitmap: most bitmaps of a segment are equal.
local function memo(make)
  return setmetatable({}, {__index = function(known, bits)
    known[bits] = make(bits)
    return known[bits]
  end})
end

-- Returns `text` with the bit of `mask` set or cleared in its byte `at`.
local function with(text, at, mask, on)
  local old = byte(text, at)
  if (band(old, mask) ~= 0) == on then return text end
  return sub(text, 1, at - 1) .. char(on and old + mask or old - mask) .. sub(text, at + 1)
end

local function pair(low)
  return char(low % 256, floor(low / 256))
end

-- Changes few keys: searches for each of them.
local function change_few(body, width, at, mask, added, gone)
  local step = 8 + width
  for key in gmatch(added, KEY) do
    local start = place(body, key, step)
    if start then
      body = with(body, start + 7 + at, mask, true)
    else
      body = body .. key .. rep("\0", at - 1) .. char(mask) .. rep("\0", width - at)
    end
  end
  for key in gmatch(gone, KEY) do
    local start = place(body, key, step)
    if start then
      body = with(body, start + 7 + at, mask, false)
      if sub(body, start + 8, start + 7 + width) == rep("\0", width) then
        body = sub(body, 1, start - 1) .. sub(body, start + step)
      end
    end
  end
  return body
end

-- Changes many keys: walks over the records once.
local function change_many(body, width, at, mask, added, gone)
  local zero = rep("\0", width)
  local one = rep("\0", at - 1) .. char(mask) .. rep("\0", width - at)
  local set = memo(function(bits) return with(bits, at, mask, true) end)
  local cleared = memo(function(bits) return with(bits, at, mask, false) end)
  local record = "(" .. KEY .. ")(" .. rep(".", width) .. ")"
  if added == "" or gone == "" then
    -- A prompt's keys come and go in one order, and neighbours mostly have the same holders. Such records
    -- are changed together, because making a string of each key takes most of the time.
    local keys, changed_bits, step = added .. gone, gone == "" and set or cleared, 8 + width
    local start = place(body, sub(keys, 1, 8), step)
    local common = start and math.min((#body + 1 - start) / step, #keys / 8)
    local rest = common and sub(keys, common * 8 + 1)
    if rest == "" or (start == 1 and gone == "") then
      local bits, past = sub(body, start + 8, start + 7 + width), start + common * step
      keys = sub(keys, 1, common * 8)
      if gsub(keys, KEY, "%0" .. gsub(bits, "%%", "%%%%")) == sub(body, start, past - 1) then
        local new = changed_bits[bits]
        return sub(body, 1, start - 1)
          .. (new == zero and "" or gsub(keys, KEY, "%0" .. gsub(new, "%%", "%%%%")))
          .. sub(body, past) .. gsub(rest, KEY, "%0" .. one)
      end
    end
  end
  local wish, left = {}, #added / 8
  for key in gmatch(added, KEY) do wish[key] = true end
  for key in gmatch(gone, KEY) do wish[key] = false end
  body = gsub(body, record, function(key, bits)
    local wanted = wish[key]
    if wanted then
      wish[key] = nil
      left = left - 1
      return key .. set[bits]
    elseif wanted == false then
      local rest = cleared[bits]
      return rest == zero and "" or key .. rest
    end
  end)
  if left > 0 then
    local new, count = {}, 0
    for key in gmatch(added, KEY) do
      if wish[key] then
        new[count + 1], new[count + 2] = key, one
        count = count + 2
      end
    end
    body = body .. table.concat(new)
  end
  return body
end

-- Returns the body with one column less: the last column's bits take the place of column `column`'s.
local function move_last(body, columns, column)
  local width, less = floor((columns + 7) / 8), floor((columns + 6) / 8)
  local from, from_mask = floor((columns - 1) / 8) + 1, lshift(1, (columns - 1) % 8)
  local to, to_mask = floor(column / 8) + 1, lshift(1, column % 8)
  local moved = memo(function(bits)
    local on = band(byte(bits, from), from_mask) ~= 0
    return sub(with(with(bits, to, to_mask, on), from, from_mask, false), 1, less)
  end)
  return (gsub(body, "(" .. KEY .. ")(" .. rep(".", width) .. ")", function(key, bits)
    return key .. moved[bits]
  end))
end

-- Returns a packed value after a change (false where nothing is left), and its number of records.
local function change(value, slot, added, gone)
  if not value then
    if added == "" then return false, 0 end
    return "\1\0\1\0" .. slot .. gsub(added, KEY, "%0\1"), #added / 8
  end
  local columns = byte(value, 3) + 256 * byte(value, 4)
  local slots, body = sub(value, 5, 4 + 8 * columns), sub(value, 5 + 8 * columns)
  local width = floor((columns + 7) / 8)
  local start = place(slots, slot, 8)
  local column = start and (start - 1) / 8
  if not column then
    if added == "" then return value, 0 end
    if columns == 65535 then error("a segment has no room for another holder") end
    column, columns, slots = columns, columns + 1, slots .. slot
    if column % 8 == 0 then
      body = gsub(body, rep(".", 8 + width), "%0\0")
      width = width + 1
    end
  end
  local at, mask = floor(column / 8) + 1, lshift(1, column % 8)
  local step = 8 + width
  -- To search for a key takes about as long as to walk over two records.
  local how = #added + #gone > 16 + 4 * #body / step and change_many or change_few
  body = how(body, width, at, mask, added, gone)
  if gone ~= "" and added == "" then
    local held = false
    for byte_at = 8 + at, #body, step do
      if band(byte(body, byte_at), mask) ~= 0 then
        held = true
        break
      end
    end
    if not held then
      if body == "" then return false, 0 end
      if column == columns - 1 and columns % 8 ~= 1 then
        slots = sub(slots, 1, -9)
      else
        body = move_last(body, columns, column)
        local last = sub(slots, -8)
        slots = sub(sub(slots, 1, 8 * column) .. last .. sub(slots, 8 * column + 9), 1, -9)
      end
      columns = columns - 1
      step = 8 + floor((columns + 7) / 8)
    end
  end
  return "\1\0" .. pair(columns) .. slots .. body, #body / step
end

local function marker(blocks)
  return "\2\0\0\0" .. pair(blocks % 65536) .. pair(floor(blocks / 65536))
end

-- Gives each record of a packed value a field of its own.
local function spill(segment, value, records)
  local columns = byte(value, 3) + 256 * byte(value, 4)
  local parts = memo(function(bits)
    local slots, count = {}, 0
    for column = 0, columns - 1 do
      if band(byte(bits, floor(column / 8) + 1), lshift(1, column % 8)) ~= 0 then
        count = count + 1
        slots[count] = sub(value, 5 + 8 * column, 12 + 8 * column)
      end
    end
    local ones = rep("\255", floor(count / 8))
    if count % 8 ~= 0 then ones = ones .. char(lshift(1, count % 8) - 1) end
    return {"\1\0" .. pair(count) .. table.concat(slots), ones}
  end)
  local width = floor((columns + 7) / 8)
  for at = 5 + 8 * columns, #value, 8 + width do
    local key = sub(value, at, at + 7)
    local part = parts[sub(value, at + 8, at + 7 + width)]
    local field = segment .. key
    values[field] = false
    put(field, part[1] .. key .. part[2])
  end
  put(segment, marker(records))
end

-- Changes the fields of a spilled segment's blocks.
local function change_spilled(segment, value, slot, added, gone)
  local blocks = struct.unpack("<I4", value, 5)
  for key in gmatch(added, KEY) do
    local field = segment .. key
    local old = get(field)
    if not old then blocks = blocks + 1 end
    put(field, (change(old, slot, key, "")))
  end
  for key in gmatch(gone, KEY) do
    local field = segment .. key
    local old = get(field)
    local new = change(old, slot, "", key)
    if old and not new then blocks = blocks - 1 end
    put(field, new)
  end
  put(segment, blocks > 0 and marker(blocks))
end

local adds = false
for at = 6, #ARGV, 4 do
  local segment, slot, added, gone = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local value = get(segment)
  local kind = value and byte(value)
  adds = adds or added ~= ""
  if kind == 2 then
    change_spilled(segment, value, slot, added, gone)
  elseif kind == 1 or not value then
    local new, records = change(value, slot, added, gone)
    if records > MOST then
      spill(segment, new, records)
    else
      put(segment, new)
    end
  else
    return redis.error_reply("BADSEGMENT a segment's value is of no known kind")
  end
end

-- The checkpoint comes last: a user who may not HDEL must not leave a write that counts and is half done.
local stored, dropped = {}, {}
if not adds then redis.call("PEXPIRE", bucket, ARGV[5]) end
for field in pairs(changed) do
  if values[field] then
    if #stored > 1000 then
      redis.call("HSET", bucket, unpack(stored))
      stored = {}
    end
    stored[#stored + 1], stored[#stored + 2] = field, values[field]
  else
    dropped[#dropped + 1] = field
  end
end
if #dropped > 0 and #stored > 0 then
  redis.call("HSET", bucket, unpack(stored))
  stored = {}
end
for at = 1, #dropped, 1000 do
  redis.call("HDEL", bucket, unpack(dropped, at, math.min(at + 999, #dropped)))
end
redis.call("HSET", bucket, "writes", writes, checkpoint, ARGV[2] .. ":" .. ARGV[4], unpack(stored))
if adds then redis.call("PEXPIRE", bucket, ARGV[5]) end
return {1, token, after}
