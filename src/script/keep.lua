-- Ends a lease, and keeps the lock from everybody for a while longer (min_hold). value.lua comes before.
--
-- KEYS  the locks (alone: a slot that is being moved answers TRYAGAIN for companions that are not there)
-- ARGV  1 owner  2 ms for which it is kept  3 its units where it is one share of several, else 0
-- Reply 1 kept  0 one of the keys is gone  -1 another owner holds one of them
-- Idempotent because a lease that is kept has another owner from then on, this one's with KEPT at its end. Repeated, it
-- finds that owner and changes nothing: a repeat is sent later and would lengthen the lease by that.
local KEPT = '~'
local owner, life, units = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Waiters may have put their mark before or after KEPT.
local function is_kept(value)
  for _, start in ipairs({owner .. KEPT, owner .. MARK .. KEPT}) do
    if string.sub(value, 1, #start) == start then return true end
  end
end

local function keep(key)
  local value = value_of(key, redis.call)
  if not value then return 0 end
  if is_kept(value) then return 1 end
  if value ~= owner and value ~= owner .. MARK then return -1 end
  -- In this order: PEXPIRE is allowed when memory is full, and after one write of a script all others are.
  redis.call('PEXPIRE', key, life)
  redis.call('APPEND', key, KEPT)
  return 1
end

local function keep_share(key)
  local member = units .. ' ' .. owner
  local ends = redis.call('ZSCORE', key, member)
  if not ends then return redis.call('ZSCORE', key, member .. KEPT) and 1 or 0 end
  if tonumber(ends) <= now then return 0 end
  local ttl = redis.call('PTTL', key)
  redis.call('PEXPIRE', key, string.format('%.0f', math.max(ttl, life)))
  redis.call('ZADD', key, string.format('%.0f', now + life), member .. KEPT)
  redis.call('ZREM', key, member)
  return 1
end

local reply = 1
for _, key in ipairs(KEYS) do
  reply = math.min(reply, units == '0' and keep(key) or keep_share(key))
end
return reply
