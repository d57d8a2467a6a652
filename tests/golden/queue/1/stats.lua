-- Returns {waiting to be taken, taken and unanswered, dead letters, age of the oldest in ms, live workers}.

local now = now_ms()
local total, held, oldest = 0, 0, now
for _, stream in ipairs(STREAMS) do
  total = total + redis.call('XLEN', stream)
  held = held + (pending(stream)[1] or 0)
  local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
  if first then oldest = math.min(oldest, tonumber(string.match(first[1], '^%d+'))) end
end
return {total - held, held, redis.call('XLEN', DEAD), now - oldest, redis.call('ZCOUNT', WORKERS, as_text(now), '+inf')}
