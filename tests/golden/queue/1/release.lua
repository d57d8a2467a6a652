-- A worker hands entries back, undone. One that was taken from it stays with its new owner.
-- ARGV: consumer, then stream and id of each entry

for i = 2, #ARGV, 2 do
  local stream, id = ARGV[i], ARGV[i + 1]
  local entry = pending(stream, id, id, 1, ARGV[1])[1]
  if entry then hand_back(stream, entry) end
end
return 1
