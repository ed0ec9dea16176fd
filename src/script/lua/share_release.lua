-- Releases a share of a lock to the waiters that it, with what else is free, is enough for.
-- queue.lua and share.lua come before.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 owner  2 last fence used  3 last of its block ('' where none is left)  4 life of a waiter ms
--       5 heard  6 '1' where the owner may itself be in the queue (a cancel)  7 units  8 units of the whole
-- Reply 1 released  3 released and given to a waiter  0 it was not there
-- Idempotent because it ends this owner's lease and no other.
lock, queue, waiters, life, heard = KEYS[1], KEYS[3], KEYS[4], ARGV[4], ARGV[5]
local refused = open()
if refused then return refused end
-- Nothing is held, so nobody says otherwise.
if used == 0 then of = tonumber(ARGV[8]) end
if ARGV[6] == '1' then leave(ARGV[1]) end
local released = drop(ARGV[7] .. ' ' .. ARGV[1])
if released then give_back(KEYS[2], ARGV[2], ARGV[3]) end
advance(nil)
close()
if not released then return 0 end
return given and 3 or 1
