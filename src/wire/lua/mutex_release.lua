-- Releases a mutex that has no known waiter. value.lua is not before it, because Redis would define its functions at each
-- run. A value is read and marked as described there.
--
-- KEYS  1 lock alone: for a missing companion in a slot that is being moved, the server answers TRYAGAIN
-- ARGV  1 owner
-- Reply 1 released  2 not released: others wait, so mutex_hand_over.lua must follow  0 the key is gone
--       -1 another owner holds it
-- Idempotent because it deletes only this owner's key.
local value = redis.call('GETRANGE', KEYS[1], 0, 511)
if value == ARGV[1] then return redis.call('DEL', KEYS[1]) end
if value == ARGV[1] .. '!' then return 2 end
if value ~= '' or redis.call('EXISTS', KEYS[1]) == 1 then return -1 end
return 0
