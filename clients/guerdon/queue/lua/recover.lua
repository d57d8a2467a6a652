-- A worker whose last TAKE got no answer: what it was given without hearing of it is handed back, undone.
-- ARGV: consumer, then stream and id of each entry that it knows of

local consumer = ARGV[1]
local held = {}
for i = 2, #ARGV, 2 do held[ARGV[i] .. ' ' .. ARGV[i + 1]] = true end
for _, stream in ipairs(STREAMS) do
  for _, entry in ipairs(pending(stream, '-', '+', 10000, consumer)) do
    if not held[stream .. ' ' .. entry[1]] then hand_back(stream, entry) end
  end
end
return 1
