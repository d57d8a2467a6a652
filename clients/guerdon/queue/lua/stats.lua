-- Returns {waiting to be taken, taken and unanswered, dead letters, age of the oldest in ms, live workers, entries
-- ever submitted}.

local now = now_ms()
local total, held, oldest, added = 0, 0, now, 0
for _, stream in ipairs(STREAMS) do
  total = total + redis.call('XLEN', stream)
  held = held + (pending(stream)[1] or 0)
  local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
  if first then oldest = math.min(oldest, tonumber(string.match(first[1], '^%d+'))) end
  local info = redis.pcall('XINFO', 'STREAM', stream)
  if not info.err then added = added + named(info)['entries-added'] end
end
local workers = redis.call('ZCOUNT', WORKERS, as_text(now), '+inf')
return {total - held, held, redis.call('XLEN', DEAD), now - oldest, workers, added}
