-- A client ends: its reader, which waits for replies, gets an empty one.
-- ARGV: client

send(ARGV[1], '', 'ok', '', '')
return 1
