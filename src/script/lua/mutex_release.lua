-- Releases a mutex that has no known waiter. value.lua comes before.
--
-- KEYS  1 lock alone: for a missing companion in a slot that is being moved, the server answers TRYAGAIN
-- ARGV  1 owner
-- Reply 1 released  2 not released: others wait, so mutex_hand_over.lua must follow  0 the key is gone
--       -1 another owner holds it
-- Idempotent because it deletes only this owner's key.
local value = value_of(KEYS[1], redis.call)
if value == ARGV[1] then return redis.call('DEL', KEYS[1]) end
if value == ARGV[1] .. MARK then return 2 end
if value then return -1 end
return 0
