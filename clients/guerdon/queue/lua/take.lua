-- A worker takes work: first what others left behind, then high priority, then the rest.
-- ARGV: consumer, most entries, lease in ms, most deliveries, rescue (1 or 0), holds nothing (1 or 0),
--       then stream and id of entries that this consumer has just been given by a blocking read
-- Returns {waiting, entries}. `waiting` is 1 when an entry was left behind that this worker may take once it
-- holds nothing: whatever it crashes must be its only victim. An entry is {stream, id, deliveries, alone,
-- request id, op, body, client, deadline, enqueued, ms left until the deadline or '', ms since it was enqueued,
-- traceparent}.

local consumer, most = ARGV[1], tonumber(ARGV[2])
local lease_ms, most_deliveries = ARGV[3], tonumber(ARGV[4])
local may_rescue, holds_nothing = ARGV[5] == '1', ARGV[6] == '1'
local now = now_ms()
local taken = {}

-- What is wrong with the fields of an entry that no client of ours has written, or nil. Fields that are not known
-- here do no harm; a deadline and the time of entry may be missing.
local function malformed(id, field)
  for _, name in ipairs({'rid', 'op', 'body', 'client'}) do
    if not field[name] then return name .. ' is missing' end
  end
  field.deadline = field.deadline or ''
  field.enqueued = field.enqueued or string.match(id, '^%d+')
  for _, name in ipairs({'deadline', 'enqueued'}) do
    local text = field[name]
    local absent = name == 'deadline' and text == ''
    if not absent and (#text > 15 or not string.find(text, '^%d+$')) then
      return name .. ' is no time in Unix milliseconds'
    end
  end
end

local function dead_letter(stream, field, deliveries, reason)
  redis.call('XADD', DEAD, 'MAXLEN', '~', DEAD_LETTERS_KEPT, '*', 'rid', field.rid or '', 'op', field.op or '',
             'body', field.body or '', 'client', field.client or '', 'enqueued', field.enqueued or '',
             'deliveries', deliveries, 'stream', stream, 'reason', reason)
end

-- A malformed entry becomes a dead letter at once: an error here would stop every worker, for ever.
local function refuse(stream, id, field, deliveries, problem)
  local reason = 'malformed queue entry: ' .. problem
  dead_letter(stream, field, deliveries, reason)
  if field.rid and field.client then
    finish(stream, id, field.rid, field.client, 'invalid_input', reason, '')
  else
    redis.call('XACK', stream, GROUP, id)
    redis.call('XDEL', stream, id)
  end
end

-- Takes an entry, or answers it here when nobody wants it any more.
local function admit(stream, entry, deliveries, alone)
  local id, field = entry[1], named(entry[2])
  local problem = malformed(id, field)
  if problem then return refuse(stream, id, field, deliveries, problem) end
  local flight = redis.call('HMGET', flight_key(field.rid), 'id', 'deadline', 'cancelled')
  local mine = flight[1] == id
  local deadline = mine and flight[2] or field.deadline
  local function drop(reason) finish(stream, id, field.rid, field.client, 'timeout', reason, '') end
  if redis.call('EXISTS', result_key(field.rid)) == 1 then
    known(field.rid, field.client)
    finish(stream, id, field.rid, field.client, 'ok', '', '')
  elseif mine and flight[3] then
    drop('cancelled by the client before a worker took it')
  elseif deadline ~= '' and now >= tonumber(deadline) then
    drop('the deadline passed in the queue, after ' .. as_text(now - field.enqueued) .. ' ms')
  else
    local left_ms = deadline == '' and '' or as_text(deadline - now)
    taken[#taken + 1] = {stream, id, deliveries, alone, field.rid, field.op, field.body, field.client,
                         deadline, field.enqueued, left_ms, as_text(now - field.enqueued), field.trace or ''}
  end
end

-- Calls `act` on an entry. Where somebody else has written to the keys of its request, this costs the request alone.
local function apart(act, stream, entry, deliveries, alone)
  local fine, problem = pcall(act, stream, entry, deliveries, alone)
  if fine then return end
  dead_letter(stream, named(entry[2]), deliveries, 'its keys hold something else: ' .. (problem.err or problem))
  redis.call('XACK', stream, GROUP, entry[1])
  redis.call('XDEL', stream, entry[1])
end

local function claim(stream, id, deliveries, alone)
  local claimed = redis.call('XCLAIM', stream, GROUP, consumer, 0, id)
  if claimed[1] then apart(admit, stream, claimed[1], deliveries, alone) end
end

local function give_up(stream, entry, deliveries)
  local id, field = entry[1], named(entry[2])
  local problem = malformed(id, field)
  if problem then return refuse(stream, id, field, deliveries, problem) end
  local reason = 'given up: ' .. deliveries .. ' workers stopped answering while they worked on it'
  dead_letter(stream, field, deliveries, reason)
  finish(stream, id, field.rid, field.client, 'internal_error', reason, '')
end

local function bury(stream, id, deliveries)
  local entry = redis.call('XRANGE', stream, id, id)[1]
  if entry then
    apart(give_up, stream, entry, deliveries)
  else
    redis.call('XACK', stream, GROUP, id)
  end
end

-- Takes what others left behind. Entries that were handed back, or that one worker left when it died, are taken
-- in any number: most deaths are nobody's fault. An entry over which two died runs alone from then on. Taken in
-- bulk again, the innocent would be given up with the guilty; so they are delivered three times at most.
-- Returns true when one has to wait until this worker holds nothing.
local trusted = most_deliveries > 2 and 1 or 0
local function rescue(stream)
  for _, left in ipairs(pending(stream, 'IDLE', lease_ms, '-', '+', most)) do
    local id, deliveries = left[1], left[4]
    if #taken >= most or (#taken > 0 and deliveries > trusted) then return false end
    if deliveries <= trusted then
      claim(stream, id, deliveries + 1, 0)
    elseif deliveries >= most_deliveries then
      bury(stream, id, deliveries)
    elseif not holds_nothing then
      return true
    else
      claim(stream, id, deliveries + 1, 1)
      if #taken > 0 then return false end
    end
  end
  return false
end

local function read(stream)
  if #taken >= most then return end
  local command = {'XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', most - #taken, 'STREAMS', stream, '>'}
  local answer = redis.pcall(unpack(command))
  if answer and answer.err then
    if not string.find(answer.err, 'NOGROUP', 1, true) then error(answer) end
    ensure_groups()
    answer = redis.call(unpack(command))
  end
  if answer then
    for _, entry in ipairs(answer[1][2]) do apart(admit, stream, entry, 1, 0) end
  end
end

for i = 7, #ARGV, 2 do
  local stream, id = ARGV[i], ARGV[i + 1]
  local entry = redis.call('XRANGE', stream, id, id)[1]
  -- When this worker was slow to ask, another may have taken it.
  if entry and #pending(stream, id, id, 1, consumer) == 1 then apart(admit, stream, entry, 1, 0) end
end

local waiting = 0
if may_rescue then
  for _, stream in ipairs(STREAMS) do
    if rescue(stream) then waiting = 1 end
    if #taken > 0 and taken[1][4] == 1 then return {0, taken} end
  end
end
-- Whoever waits to rescue takes nothing new, or it would never hold nothing.
if waiting == 0 then
  for _, stream in ipairs(STREAMS) do read(stream) end
end
return {waiting, taken}
