-- Prepended to every script. KEYS[1] is the prefix "{service}:"; every key of the service starts with it, so
-- that all of them live in one cluster slot. The keys are documented in guerdon/queue/__init__.py.

local prefix = KEYS[1]

-- The consumer group of both streams.
local GROUP = 'workers'
-- A consumer that no process is: it owns the entries that a worker handed back.
local RELEASED = 'released'
-- Milliseconds of idleness that an entry gets when it is handed back: longer than any lease.
local RELEASED_IDLE_MS = 86400000
-- Milliseconds that a result is kept for a client that asks again.
local RESULT_TTL_MS = 600000
-- Milliseconds that it is kept after it was read, where nobody knows its request id but the one who read it.
local READ_RESULT_TTL_MS = 60000
-- Milliseconds after the last reply when the reply stream of a client that never came back goes away.
local REPLY_TTL_MS = 3600000
-- Milliseconds after which a request counts as forgotten even though nobody answered it.
local FLIGHT_TTL_MS = 86400000
-- Dead letters that are kept for inspection; their clients have had an answer.
local DEAD_LETTERS_KEPT = 10000
-- Answers that are kept and given again. The others (timeout, unavailable, overloaded) say that the work was
-- not done, and the same request may be submitted anew.
local FINAL = {ok = true, invalid_input = true, internal_error = true}

local STREAMS = {prefix .. 'q:0', prefix .. 'q:1'}
local DEAD = prefix .. 'dlq'
local WORKERS = prefix .. 'workers'

local function result_key(request_id) return prefix .. 'res:' .. request_id end
local function flight_key(request_id) return prefix .. 'dd:' .. request_id end
local function reply_key(client) return prefix .. 'reply:' .. client end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function as_text(integer) return string.format('%.0f', integer) end

local function named(flat)
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end

-- Creates whatever group is missing: at the first start, or after the server lost its data.
local function ensure_groups()
  for _, stream in ipairs(STREAMS) do
    local created = redis.pcall('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
    if created.err and not string.find(created.err, 'BUSYGROUP', 1, true) then error(created) end
  end
end

-- Entries of the group in `stream`, as XPENDING gives them: {id, consumer, idle ms, deliveries}.
local function pending(stream, ...)
  local entries = redis.pcall('XPENDING', stream, GROUP, ...)
  if entries.err then
    if string.find(entries.err, 'NOGROUP', 1, true) then return {} end
    error(entries)
  end
  return entries
end

local function send(client, request_id, status, reason, body)
  local key = reply_key(client)
  -- A client under whose name somebody else keeps something hears nothing; its requests must not come back for ever.
  redis.pcall('XADD', key, '*', 'rid', request_id, 'status', status, 'reason', reason, 'body', body)
  redis.call('PEXPIRE', key, REPLY_TTL_MS)
end

-- Whether a request waits or is being worked on.
local function in_flight(request_id)
  local flight = redis.call('HMGET', flight_key(request_id), 'stream', 'id')
  return flight[1] and #redis.call('XRANGE', flight[1], flight[2], flight[2]) == 1
end

-- Appends an entry and notes that the request is in flight.
local function enqueue(stream, request_id, op, body, client, deadline, serial, trace)
  local key = flight_key(request_id)
  local id = redis.call('XADD', stream, '*', 'rid', request_id, 'op', op, 'body', body, 'client', client,
                        'deadline', deadline, 'enqueued', as_text(now_ms()), 'trace', trace)
  redis.call('DEL', key)
  redis.call('HSET', key, 'stream', stream, 'id', id, 'client', client, 'deadline', deadline, 'serial', serial)
  redis.call('PEXPIRE', key, FLIGHT_TTL_MS)
end

-- What is known of a request: 'answered' (the result is sent again), 'queued' (waiting or being worked on,
-- and its answer will go to this client), or 'missing'.
local function known(request_id, client)
  local result = redis.call('HMGET', result_key(request_id), 'status', 'reason', 'body')
  if result[1] then
    send(client, request_id, result[1], result[2], result[3])
    return 'answered'
  end
  if in_flight(request_id) then
    redis.call('HSET', flight_key(request_id), 'client', client)
    return 'queued'
  end
  return 'missing'
end

-- Answers an entry and forgets it. The first final answer of a request is kept and sent; a later one is not,
-- so this may be called again when the caller does not know whether the first call arrived. `passing` is '1' for a body
-- which says that the work was not done.
local function finish(stream, id, request_id, client, status, reason, body, passing)
  local flight = redis.call('HMGET', flight_key(request_id), 'id', 'client')
  redis.call('XACK', stream, GROUP, id)
  local first = redis.call('XDEL', stream, id) == 1
  if FINAL[status] and passing ~= '1' then
    local key = result_key(request_id)
    first = redis.call('EXISTS', key) == 0
    if first then
      redis.call('HSET', key, 'status', status, 'reason', reason, 'body', body)
      redis.call('PEXPIRE', key, RESULT_TTL_MS)
    end
  end
  if first then send(flight[2] or client, request_id, status, reason, body) end
  if flight[1] == id then redis.call('DEL', flight_key(request_id)) end
  return first and 1 or 0
end

-- Gives an entry back: anybody may take it at once, and this delivery does not count against it.
local function hand_back(stream, entry)
  redis.call('XCLAIM', stream, GROUP, RELEASED, 0, entry[1],
             'IDLE', RELEASED_IDLE_MS, 'RETRYCOUNT', math.max(entry[4] - 1, 0), 'JUSTID')
end
