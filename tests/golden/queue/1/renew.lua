-- A worker is alive and still works on its entries. One that was taken from it stays with its new owner.
-- ARGV: consumer, lease in ms, then stream and id of each entry

local consumer = ARGV[1]
redis.call('ZADD', WORKERS, as_text(now_ms() + ARGV[2]), consumer)
for i = 3, #ARGV, 2 do
  local stream, id = ARGV[i], ARGV[i + 1]
  if #pending(stream, id, id, 1, consumer) == 1 then
    redis.call('XCLAIM', stream, GROUP, consumer, 0, id, 'JUSTID')
  end
end
return 1
