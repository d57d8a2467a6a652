-- A client has read replies.
-- ARGV: client, then for each reply: its id in the reply stream, its request id

for i = 2, #ARGV, 2 do
  redis.call('XDEL', reply_key(ARGV[1]), ARGV[i])
  redis.call('PEXPIRE', result_key(ARGV[i + 1]), READ_RESULT_TTL_MS, 'LT')
end
return 1
