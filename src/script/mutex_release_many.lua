-- Releases many mutexes that nobody is known to wait for.
--
-- KEYS  the locks (alone, as in mutex_release.lua)
-- ARGV  for each lock its owner
-- Reply for each lock as in mutex_release.lua, or -2 not allowed to, or a key of another type
-- Idempotent because it only ever deletes this owner's keys.
local reply = {}
for i, key in ipairs(KEYS) do
  -- By pcall, so that one bad key does not end the batch.
  local value = redis.pcall('GET', key)
  if value == ARGV[i] then
    reply[i] = redis.pcall('DEL', key)
  elseif value == ARGV[i] .. '!' then
    reply[i] = 2
  elseif not value then
    reply[i] = 0
  else
    reply[i] = -1
  end
  if type(value) == 'table' or type(reply[i]) == 'table' then reply[i] = -2 end
end
return reply
