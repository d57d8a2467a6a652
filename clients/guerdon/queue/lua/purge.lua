-- Forgets dead letters. What their clients were told stays as it is.
-- ARGV: ids
-- Returns how many there were.

local purged = 0
for _, id in ipairs(ARGV) do purged = purged + redis.call('XDEL', DEAD, id) end
return purged
