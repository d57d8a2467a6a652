-- A worker answers an entry. May be called again after a lost connection.
-- ARGV: stream, id, request id, client, status, reason, body, 1 when the body says that the work was not done
-- Returns 1 when this was the request's first answer.

return finish(unpack(ARGV))
