-- Renews many leases.
--
-- KEYS  the locks alone: for a missing companion in a slot that is being moved, the server answers TRYAGAIN
-- ARGV  for each lock its owner, its lease in ms (0 only looks whether the owner holds it), and its units if several
--       owners share the lock, else 0
-- Reply for each lock 1 renewed  2 renewed, and others wait  0 it is gone  -1 another owner holds it
--       or -2 if the server rejected it
-- Idempotent because it only raises a time to live, and creates nothing. A look writes nothing.
-- include value.lua
-- include batch.lua
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Renews a mutex. Returns the result to reply, or an error as a table.
local function renew(key, owner, lease)
  local value = value_of(key, redis.pcall)
  if failed(value) then return value end
  if not value then return 0 end
  if not is_held_by(value, owner) then return -1 end
  if lease == 0 then return value == owner and 1 or 2 end
  -- It always writes, so that a WAIT that follows waits for this write.
  local ttl = redis.pcall('PTTL', key)
  if failed(ttl) then return ttl end
  if ttl >= lease then lease = string.format('%.0f', ttl + 1) end
  local set = redis.pcall('PEXPIRE', key, lease)
  if failed(set) then return set end
  return value == owner and 1 or 2
end

-- Renews the lease of one owner of several. Returns the result to reply, or an error as a table.
local function renew_share(key, owner, lease, units)
  local member = units .. ' ' .. owner
  local ends = redis.pcall('ZSCORE', key, member)
  if failed(ends) then return ends end
  -- An expired lease may still be listed. Other owners may take its units.
  if not ends or tonumber(ends) <= now then return 0 end
  if lease == 0 then return 1 end
  -- PEXPIRE comes first, even if the key lives long enough: Redis allows it when memory is full. After a script's first
  -- write Redis rejects no other.
  local ttl = redis.pcall('PTTL', key)
  if failed(ttl) then return ttl end
  local set = redis.pcall('PEXPIRE', key, string.format('%.0f', math.max(ttl + 1, lease)))
  if failed(set) then return set end
  set = redis.pcall('ZADD', key, 'XX', 'GT', string.format('%.0f', now + lease), member)
  if failed(set) then return set end
  return 1
end

return for_each_key(function(key, i)
  local owner, lease, units = ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), ARGV[3 * i]
  if units == '0' then return renew(key, owner, lease) end
  return renew_share(key, owner, lease, units)
end)
