-- Tells the client which pod has answered, and the router when the first token came and what was used.
--
-- Envoy's Lua filter runs this for each response. Only a pod's response has SERVED, from the filter beside
-- its connection. A stream is followed up to its first event with a token,
-- and to its end only if the router has asked for that; an answer in one piece is always read. Nothing is
-- held back. The access log, which this does not write, tells the router how the request ended.
--
-- Each answer has a coroutine and closures of its own, and most time goes to patterns: compiled traces do not
-- pay for themselves, as LuaJIT gives them up, and makes its code's pages writable for the next ones again.
jit.off()

local PICK, ANSWER, SERVED = "envoy.filters.http.ext_authz", "warmpath", "x-warmpath-served"
local TOLD = { "x-warmpath-pod", "x-warmpath-cached-tokens", "x-warmpath-saved-seconds" }
local REPORT = {
  [":method"] = "POST", [":path"] = "/warmpath.v1.Router/Report", [":authority"] = "router",
  ["content-type"] = "application/grpc", ["te"] = "trailers",
}
local MOST_BYTES, MOST_HELD_BYTES = 4096, 65536

-- As in router/inference_api/response.py.
local BEFORE_FIRST_TOKEN = {
  message_start = true, message_stop = true, ping = true, error = true,
  ["response.created"] = true, ["response.queued"] = true, ["response.in_progress"] = true,
  ["response.failed"] = true, ["response.incomplete"] = true,
}
local NUMBERS = {
  prompt_tokens = true, cached_tokens = true, completion_tokens = true, input_tokens = true,
  output_tokens = true, cache_read_input_tokens = true, cache_creation_input_tokens = true,
}

local function unquoted(text)
  return (text:gsub("%%(%x%x)", function(code) return string.char(tonumber(code, 16)) end))
end

-- A field of protobuf's wire format, with a text of less than 128 bytes.
local function field(tag, text) return string.char(tag, #text) .. text end

-- Sets the headers about the pod at an address; `told` has ADDRESS POD CACHED SAVED of each endpoint.
local function tell_client(headers, told, served, status)
  for address, pod, cached, saved in told:gmatch("([^ ,]+) (%S+) (%S+) ([^ ,]+)") do
    if address == served then
      headers:replace(TOLD[1], unquoted(pod))
      if cached ~= "-" and status < 400 then
        headers:replace(TOLD[2], cached)
        headers:replace(TOLD[3], saved)
      end
      return
    end
  end
end

local function tell_first_token(handle, booking, served, router)
  -- ReportRequest: booking_id, event FIRST_TOKEN, served, router.
  local message = field(10, booking) .. "\16\1" .. field(82, served) .. field(90, router)
  handle:httpCall("router", REPORT, "\0\0\0\0" .. string.char(#message) .. message, 2000, true)
end

-- Whether a line of data, in an event of a kind, has a token or comes only after one.
local function has_token(data, kind)
  if not data:find("^%s*{") or data:find('"error"%s*:%s*[{"]') then return false end
  if data:find('"choices"%s*:%s*%[%s*%]') then return false end
  if not kind and not data:find('"choices"', 1, true) then
    kind = data:match('"type"%s*:%s*"([%w_.]+)"')
  end
  return not BEFORE_FIRST_TOKEN[kind or ""]
end

-- Whether the whole lines of a stream's beginning have a token; the rest of it, and the kind of its event.
local function first_token(text, kind)
  local at = 1
  while true do
    local line_end, after = text:find("\r?\n", at)
    if not line_end then return #text - at >= MOST_HELD_BYTES, text:sub(at), kind end
    local line = text:sub(at, line_end - 1)
    at = after + 1
    if line == "" then
      kind = nil
    elseif line:find("^event:") then
      kind = line:match("^event:%s*(%S*)")
    elseif line:find("^data:") and has_token(line:sub(6), kind) then
      return true, "", kind
    end
  end
end

local function count(object, counts)
  local seen = {}
  for name, number in object:gmatch('"([%l_]+)"%s*:%s*(%d+)') do
    if NUMBERS[name] and not seen[name] then seen[name], counts[name] = true, number end
  end
end

-- Counts the tokens in each usage of a text; returns the end of the text that may begin another one.
local function read_usage(text, counts)
  local at = 1
  while true do
    local from, to = text:find('"usage"', at, true)
    local other, other_end = text:find('"meta_info"', at, true)
    if other and (not from or other < from) then from, to = other, other_end end
    if not from then return text:sub(math.max(at, #text - 9)) end
    local first, last = text:find("^%s*:%s*%b{}", to + 1)
    if last then
      count(text:sub(first, last), counts)
      at = last + 1
    elseif #text - from > MOST_BYTES or text:find("^%s*[^%s:]", to + 1)
        or text:find("^%s*:%s*[^%s{]", to + 1) then
      at = to + 1
    else
      return text:sub(from)
    end
  end
end

local function as_json(counts)
  local parts = {}
  for name, number in pairs(counts) do parts[#parts + 1] = '"' .. name .. '":' .. number end
  return #parts > 0 and "{" .. table.concat(parts, ",") .. "}"
end

function envoy_on_response(handle)
  local headers = handle:headers()
  local served = headers:get(SERVED)
  if not served then return end
  headers:remove(SERVED)
  local picked = handle:streamInfo():dynamicMetadata():get(PICK)
  local booking = picked and picked["x-warmpath-booking"]
  if not booking then return end
  local status = tonumber(headers:get(":status")) or 0
  if picked["x-warmpath-told"] then tell_client(headers, picked["x-warmpath-told"], served, status) end
  local router = picked["x-warmpath-router"] or ""
  if status >= 400 or #booking > 99 or #served > 64 or #router > 64 then return end
  local coding = headers:get("content-encoding") or "identity"
  local kind = (headers:get("content-type") or ""):lower()
  local is_stream = kind:find("^text/event%-stream")
  if coding ~= "identity" or not (is_stream or kind:find("^application/json")) then return end
  local is_read_whole = not is_stream or picked["x-warmpath-through"] == "watch"
  local has_begun, held, event, counts, rest = not is_stream, "", nil, {}, ""
  local last, last_bytes = {}, 0
  for chunk in handle:bodyChunks() do
    local text = chunk:getBytes(0, chunk:length())
    if is_stream and has_begun then
      last[#last + 1], last_bytes = text, last_bytes + #text
      if last_bytes > 2 * MOST_BYTES then
        rest, last, last_bytes = "", { table.concat(last):sub(-MOST_BYTES) }, MOST_BYTES
      end
    else
      if not has_begun then
        has_begun, held, event = first_token(held .. text, event)
        if has_begun then tell_first_token(handle, booking, served, router) end
        if has_begun and not is_read_whole then return end
      end
      if is_read_whole then rest = read_usage(rest .. text, counts) end
    end
  end
  read_usage(rest .. table.concat(last), counts)
  local usage = is_read_whole and as_json(counts)
  if usage then handle:streamInfo():dynamicMetadata():set(ANSWER, "usage", usage) end
end
