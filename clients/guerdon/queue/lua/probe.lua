-- A client that has heard nothing for a while asks about its requests; those answered are sent again.
-- ARGV: client, request ids ...
-- Returns 'answered', 'queued', 'missing', or 'broken' where somebody else has written to its keys, for each.

local states = {}
for i = 2, #ARGV do
  local fine, state = pcall(known, ARGV[i], ARGV[1])
  states[i - 1] = fine and state or 'broken'
end
return states
