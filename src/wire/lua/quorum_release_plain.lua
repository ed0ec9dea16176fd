-- Releases a mutex on one node of a quorum, and wakes the first live waiter, whose turn it is then. value.lua, queue*.lua,
-- quorum_turn.lua and quorum_release.lua follow.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 owner  2 last fence used ('0' if none)  3 last fence of this node's reply to the acquire  4 first of that reply
--       (2 to 4 are '' if there are none to give back)  5 life of a waiter ms  6 '1' if PUBLISH counts all subscribers
--       7 '1' if the owner may itself be in the queue (a withdrawal)
-- Reply 1 released  3 released, and a waiter woken  0 the key is gone  -1 another owner holds it
-- Idempotent because it acts only while this owner holds the mutex, and ends that. A withdrawal also removes the owner
-- from the queue, and wakes a waiter: to be woken twice does no harm.
--
-- Most often nobody waits, so the value has no mark, and there are no fences to give back. This part stands before the
-- functions of the other files, because Redis defines a script's functions at each run, which takes longer than this
-- part.
if ARGV[2] == '' and ARGV[7] == '0' and redis.pcall('GETRANGE', KEYS[1], 0, 511) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return 1
end

