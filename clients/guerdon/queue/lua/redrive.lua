-- Queues dead letters anew, without a deadline and with all their deliveries before them.
-- ARGV: most entries per stream, then ids of letters
-- Returns for each 'queued' (also when its client has queued the request again meanwhile), 'answered' (meanwhile,
-- by another submission), 'missing', 'full' or 'malformed'. The letter is gone after the first two.

local function redrive(id)
  local letter = redis.call('XRANGE', DEAD, id, id)[1]
  if not letter then return 'missing' end
  local field = named(letter[2])
  if (field.rid or '') == '' or (field.op or '') == '' then return 'malformed' end
  -- That it was given up must not stand in the way of its answer.
  local answer = redis.call('HGET', result_key(field.rid), 'status')
  local state = 'answered'
  if not answer or answer == 'internal_error' then
    state = 'queued'
    if not in_flight(field.rid) then
      local stream = field.stream or STREAMS[2]
      if redis.call('XLEN', stream) >= tonumber(ARGV[1]) then return 'full' end
      enqueue(stream, field.rid, field.op, field.body or '', field.client or '', '', '', '')
    end
    redis.call('DEL', result_key(field.rid))
  end
  redis.call('XDEL', DEAD, id)
  return state
end

local states = {}
for i = 2, #ARGV do
  -- Where somebody else has written to the keys of its request, a letter stays, and the others go.
  local fine, state = pcall(redrive, ARGV[i])
  states[i - 1] = fine and state or 'malformed'
end
return states
