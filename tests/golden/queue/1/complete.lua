-- A worker answers an entry. May be called again after a lost connection.
-- ARGV: stream, id, request id, client, status, reason, body
-- Returns 1 when this was the request's first answer.

return finish(unpack(ARGV))
