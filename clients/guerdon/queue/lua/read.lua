-- A client has read replies.
-- ARGV: client, then for each reply: its id in the reply stream, and its request id when nobody can ask for it
-- again, or ''

for i = 2, #ARGV, 2 do
  redis.call('XDEL', reply_key(ARGV[1]), ARGV[i])
  if ARGV[i + 1] ~= '' then redis.call('PEXPIRE', result_key(ARGV[i + 1]), READ_RESULT_TTL_MS, 'LT') end
end
return 1
