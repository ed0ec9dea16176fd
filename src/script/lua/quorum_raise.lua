-- Raises the fences of a mutex on one node of a quorum, to those that another node answered. fence.lua, value.lua and
-- quorum_fence.lua come before.
--
-- KEYS  1 lock  2 fence
-- ARGV  1 owner  2 the owner's first fence  3 number of its fences  4 fence memory ms
-- Reply the record of the last fence   the owner holds the mutex
--       0 the key is gone  -1 another owner holds it
-- Idempotent because it only raises a number, and only while this owner holds the mutex.
local value = value_of(KEYS[1], redis.call)
if not value then return 0 end
if value ~= ARGV[1] and value ~= ARGV[1] .. MARK then return -1 end
return raise(KEYS[2], ARGV[2], ARGV[3], ARGV[4])
