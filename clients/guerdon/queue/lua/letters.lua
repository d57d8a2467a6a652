-- Reads dead letters, oldest first.
-- ARGV: id after which to begin or '', most letters
-- Returns {id, request id, op, body, client, reason, deliveries, enqueued} of each.

local letters = {}
local from = ARGV[1] == '' and '-' or '(' .. ARGV[1]
for i, letter in ipairs(redis.call('XRANGE', DEAD, from, '+', 'COUNT', ARGV[2])) do
  local field = named(letter[2])
  letters[i] = {letter[1], field.rid or '', field.op or '', field.body or '', field.client or '',
                field.reason or '', field.deliveries or '', field.enqueued or ''}
end
return letters
