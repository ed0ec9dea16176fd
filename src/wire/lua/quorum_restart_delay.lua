-- Notes at a node of a quorum which restart delay its clients use, unless the node has such a note.
--
-- KEYS  1 the note
-- ARGV  1 restart delay ms  2 how long the note is kept, in ms
-- Reply the restart delay of the note, in ms, or nil if there is none and the node has no memory for one
-- Idempotent because it never changes a note, and only lengthens its time to live.
local noted = redis.call('GET', KEYS[1])
if not noted then
  local set = redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  if not set.err then return ARGV[1] end
  return not string.find(set.err, 'OOM command not allowed', 1, true) and set
end
if noted == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return noted
