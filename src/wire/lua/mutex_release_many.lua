-- Releases many mutexes that have no known waiter.
--
-- KEYS  the locks (alone, as in mutex_release.lua)
-- ARGV  for each lock its owner
-- Reply for each lock as in mutex_release.lua, or -2 if the server rejected it
-- Idempotent because it deletes only these owners' keys.
-- include value.lua
-- include batch.lua
return for_each_key(function(key, i)
  local value = value_of(key, redis.pcall)
  if value == ARGV[i] then return redis.pcall('DEL', key) end
  if value == ARGV[i] .. MARK then return 2 end
  if failed(value) then return value end
  return value and -1 or 0
end)
