-- A worker starts.
-- ARGV: consumer, lease in ms, adopt (1 or 0)
-- With `adopt`, entries that this consumer holds were left by a process of the same name that is gone: they
-- need not wait for their lease to end.

local consumer = ARGV[1]
local now = now_ms()
ensure_groups()
redis.call('ZREMRANGEBYSCORE', WORKERS, '-inf', '(' .. as_text(now - RELEASED_IDLE_MS))
redis.call('ZADD', WORKERS, as_text(now + ARGV[2]), consumer)
for _, stream in ipairs(STREAMS) do
  if ARGV[3] == '1' then
    for _, entry in ipairs(pending(stream, '-', '+', 10000, consumer)) do
      redis.call('XCLAIM', stream, GROUP, consumer, 0, entry[1], 'IDLE', RELEASED_IDLE_MS, 'JUSTID')
    end
  end
  -- A consumer that holds entries must stay: deleting it would lose them.
  for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', stream, GROUP)) do
    local other = named(flat)
    if other.pending == 0 and not redis.call('ZSCORE', WORKERS, other.name) then
      redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, other.name)
    end
  end
end
return 1
