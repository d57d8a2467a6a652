-- A client no longer wants an answer. Work that has not been taken yet will be skipped.
-- ARGV: client, then pairs of request id and serial: a later submission of the same request is not meant

for i = 2, #ARGV, 2 do
  local key = flight_key(ARGV[i])
  local flight = redis.pcall('HMGET', key, 'client', 'serial')
  if flight[1] == ARGV[1] and flight[2] == ARGV[i + 1] then redis.call('HSET', key, 'cancelled', '1') end
end
return 1
