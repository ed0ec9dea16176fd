-- Releases units of a lock, and gives free units to waiters.
-- KEYS, ARGV and reply as in share_release_plain.lua.
lock, queue, waiters, life, counts_subscribers = KEYS[1], KEYS[3], KEYS[4], ARGV[4], ARGV[5]
local refused = open()
if refused then return refused end
if ARGV[6] == '1' then leave(ARGV[1]) end
local released = drop(ARGV[7] .. ' ' .. ARGV[1])
if released then give_back(KEYS[2], ARGV[2], ARGV[3]) end
advance(nil)
close()
if not released then return 0 end
return given and 3 or 1
