-- Renews many leases. value.lua comes before.
--
-- KEYS  the locks (alone: a slot that is being moved answers TRYAGAIN for companions that are not there)
-- ARGV  for each lock its owner, its lease in ms, and its units where it is one share of several, else 0
-- Reply for each lock 1 renewed  2 renewed, and others wait  0 it is gone  -1 another owner holds it
--       or -2 not allowed to
-- Idempotent because a time to live is only raised, and nothing is created.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- By pcall everywhere, so that one bad key does not end the batch.
local function failed(reply)
  return type(reply) == 'table' and reply.err
end

-- What is refused whatever the key: that is for the caller to know, whose connection may lead to the wrong server.
local function is_of_the_server(reply)
  for _, code in ipairs({'READONLY', 'MISCONF', 'NOREPLICAS'}) do
    if string.find(reply.err, code, 1, true) then return true end
  end
end

-- Each returns what to reply, or the error.
local function renew(key, owner, lease)
  local value = value_of(key, redis.pcall)
  if failed(value) then return value end
  if not value then return 0 end
  if value ~= owner and value ~= owner .. MARK then return -1 end
  -- It always writes, so that a WAIT that follows has something to wait for.
  local ttl = redis.pcall('PTTL', key)
  if failed(ttl) then return ttl end
  if ttl >= lease then lease = string.format('%.0f', ttl + 1) end
  local set = redis.pcall('PEXPIRE', key, lease)
  if failed(set) then return set end
  return value == owner and 1 or 2
end

local function renew_share(key, owner, lease, units)
  local member = units .. ' ' .. owner
  local ends = redis.pcall('ZSCORE', key, member)
  if failed(ends) then return ends end
  -- One that has run out is anybody's, though nobody has noticed yet.
  if not ends or tonumber(ends) <= now then return 0 end
  -- In this order, and even where the key lives long enough: PEXPIRE is allowed when memory is full, and after one
  -- write of a script all others are.
  local ttl = redis.pcall('PTTL', key)
  if failed(ttl) then return ttl end
  local set = redis.pcall('PEXPIRE', key, string.format('%.0f', math.max(ttl + 1, lease)))
  if failed(set) then return set end
  set = redis.pcall('ZADD', key, 'XX', 'GT', string.format('%.0f', now + lease), member)
  if failed(set) then return set end
  return 1
end

local reply = {}
for i, key in ipairs(KEYS) do
  local owner, lease, units = ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), ARGV[3 * i]
  local said
  if units == '0' then
    said = renew(key, owner, lease)
  else
    said = renew_share(key, owner, lease, units)
  end
  if failed(said) then
    if is_of_the_server(said) then return said end
    said = string.find(said.err, 'WRONGTYPE', 1, true) and -1 or -2
  end
  reply[i] = said
end
return reply
