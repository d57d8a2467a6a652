-- A client submits a request, for the first time or again.
-- ARGV: request id, op, body, client, priority (0 or 1), ms until the deadline or '', most entries per stream,
--       serial of the submission within the client, W3C traceparent or ''
-- Returns 'answered', 'queued', or 'full'.

local request_id, op, body, client = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local stream = STREAMS[ARGV[5] + 1]
local deadline = ARGV[6] == '' and '' or as_text(now_ms() + ARGV[6])
local key = flight_key(request_id)

local state = known(request_id, client)
if state == 'queued' then
  redis.call('HSET', key, 'deadline', deadline, 'serial', ARGV[8])
  redis.call('HDEL', key, 'cancelled')
end
if state ~= 'missing' then return state end

-- Work that nobody has done is never trimmed: the client has to wait.
if redis.call('XLEN', stream) >= tonumber(ARGV[7]) then return 'full' end
enqueue(stream, request_id, op, body, client, deadline, ARGV[8], ARGV[9] or '')
return 'queued'
