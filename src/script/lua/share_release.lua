-- Releases units of a lock, and gives free units to waiters. value.lua, queue.lua and share.lua come before.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 owner  2 last fence used  3 last of its block (both '' if there are none to give back)  4 life of a waiter ms
--       5 '1' if PUBLISH counts all subscribers  6 '1' if the owner may itself be in the queue (a withdrawal)  7 units
--       8 units of the lock
-- Reply 1 released  3 released and handed to a waiter  0 the owner held none
-- Idempotent because it ends this owner's lease and no other.
lock, queue, waiters, life, counts_subscribers = KEYS[1], KEYS[3], KEYS[4], ARGV[4], ARGV[5]
local refused = open()
if refused then return refused end
-- No lease contradicts the caller's number of units.
if used == 0 then total = tonumber(ARGV[8]) end
if ARGV[6] == '1' then leave(ARGV[1]) end
local released = drop(ARGV[7] .. ' ' .. ARGV[1])
if released then give_back(KEYS[2], ARGV[2], ARGV[3]) end
advance(nil)
close()
if not released then return 0 end
return given and 3 or 1
