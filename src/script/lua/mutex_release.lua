-- Releases a mutex that nobody is known to wait for. value.lua comes before.
--
-- KEYS  1 lock (alone: a slot that is being moved answers TRYAGAIN for companions that are not there)
-- ARGV  1 owner
-- Reply 1 released  2 not yet: others wait, hand it over  0 the key is gone  -1 another owner holds it
-- Idempotent because it only ever deletes this owner's key.
local value = value_of(KEYS[1], redis.call)
if value == ARGV[1] then return redis.call('DEL', KEYS[1]) end
if value == ARGV[1] .. MARK then return 2 end
if value then return -1 end
return 0
