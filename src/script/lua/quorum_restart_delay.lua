-- Notes at a node of a quorum which restart delay its clients use, unless the node has such a note.
--
-- KEYS  1 the note
-- ARGV  1 restart delay ms, 0 notes nothing  2 how long the note is kept, in ms
-- Reply the restart delay of the note, in ms, or nil without a note
-- Idempotent because it never changes a note, and only lengthens its time to live.
local noted = redis.call('GET', KEYS[1])
if not noted and ARGV[1] ~= '0' then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return ARGV[1]
end
if noted == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return noted
