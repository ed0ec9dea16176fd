-- Releases many mutexes that have no known waiter. value.lua comes before.
--
-- KEYS  the locks (alone, as in mutex_release.lua)
-- ARGV  for each lock its owner
-- Reply for each lock as in mutex_release.lua, or -2 if the server rejected it
-- Idempotent because it deletes only these owners' keys.
local reply = {}
for i, key in ipairs(KEYS) do
  -- By pcall, so that one bad key does not end the batch.
  local value = value_of(key, redis.pcall)
  if value == ARGV[i] then
    reply[i] = redis.pcall('DEL', key)
  elseif value == ARGV[i] .. MARK then
    reply[i] = 2
  elseif not value then
    reply[i] = 0
  else
    reply[i] = -1
  end
  local failed = type(value) == 'table' and value or type(reply[i]) == 'table' and reply[i]
  if failed then
    -- The server rejects writes to any key. The caller must know, because its connection may lead to the wrong server.
    for _, code in ipairs({'READONLY', 'MISCONF', 'NOREPLICAS'}) do
      if string.find(failed.err, code, 1, true) then return failed end
    end
    if not string.find(failed.err, 'WRONGTYPE', 1, true) then reply[i] = -2 end
  end
end
return reply
