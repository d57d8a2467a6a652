-- Withdraws what a client that is gone has left behind: one page of a stream. What a worker has begun goes on, and what
-- another client has asked for since is not meant.
-- ARGV: client, priority (0 or 1), id after which to begin or '', most entries
-- Returns the id to go on after ('' at the end of the stream), and how many requests were withdrawn.

local client, stream = ARGV[1], STREAMS[ARGV[2] + 1]
local from = ARGV[3] == '' and '-' or '(' .. ARGV[3]
local entries = redis.call('XRANGE', stream, from, '+', 'COUNT', ARGV[4])
local withdrawn = 0
for _, entry in ipairs(entries) do
  local key = flight_key(named(entry[2]).rid or '')
  local flight = redis.call('HMGET', key, 'id', 'client')
  if flight[1] == entry[1] and flight[2] == client then
    redis.call('HSET', key, 'cancelled', '1')
    withdrawn = withdrawn + 1
  end
end
return {#entries == tonumber(ARGV[4]) and entries[#entries][1] or '', withdrawn}
