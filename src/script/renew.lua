-- Renews many leases.
--
-- KEYS  the locks (alone: a slot that is being moved answers TRYAGAIN for companions that are not there)
-- ARGV  for each lock its owner and its lease in ms
-- Reply for each lock 1 renewed  2 renewed, and others wait  0 the key is gone  -1 another owner holds it
--       or -2 not allowed to
-- Idempotent because a time to live is only raised, and nothing is created.
local reply = {}
for i, key in ipairs(KEYS) do
  local owner, lease = ARGV[2 * i - 1], ARGV[2 * i]
  -- By pcall, so that one bad key does not end the batch.
  local value = redis.pcall('GET', key)
  if value == owner or value == owner .. '!' then
    local ttl = redis.pcall('PTTL', key)
    local raised = 1
    if type(ttl) == 'table' or ttl < tonumber(lease) then
      raised = redis.pcall('PEXPIRE', key, lease)
    end
    if type(raised) == 'table' then
      reply[i] = -2
    else
      reply[i] = value == owner and 1 or 2
    end
  elseif not value then
    reply[i] = 0
  elseif type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
    reply[i] = -2
  else
    reply[i] = -1
  end
end
return reply
