-- A client has ended and will not come back under this name.
-- ARGV: client

return redis.call('DEL', reply_key(ARGV[1]))
