-- A worker ends: it hands back whatever it still holds.
-- ARGV: consumer

local consumer = ARGV[1]
redis.call('ZREM', WORKERS, consumer)
for _, stream in ipairs(STREAMS) do
  for _, entry in ipairs(pending(stream, '-', '+', 10000, consumer)) do hand_back(stream, entry) end
  -- A consumer that holds entries must stay: deleting it would lose them.
  if #pending(stream, '-', '+', 1, consumer) == 0 then
    redis.pcall('XGROUP', 'DELCONSUMER', stream, GROUP, consumer)
  end
end
return 1
