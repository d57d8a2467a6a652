-- A client that has heard nothing for a while asks about its requests; those answered are sent again.
-- ARGV: client, request ids ...
-- Returns 'answered', 'queued' or 'missing' for each.

local states = {}
for i = 2, #ARGV do states[i - 1] = known(ARGV[i], ARGV[1]) end
return states
