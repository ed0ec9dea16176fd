-- Ends a lease, and keeps the lock from everybody for a while longer (min_hold). value.lua and queue.lua come before.
--
-- KEYS  the locks (alone: a slot that is being moved answers TRYAGAIN for companions that are not there); one lock and
--       its fence where the script gives fences back
-- ARGV  1 owner  2 ms for which it is kept  3 its units where it is one share of several, else 0
--       4 last fence used  5 last of its block ('' where none is left)
-- Reply 1 kept  0 one of the keys is gone  -1 another owner holds one of them
-- Idempotent because a lease that is kept has another owner from then on, this one's with KEPT at its end. Repeated, it
-- finds that owner and changes nothing: a repeat is sent later and would lengthen the lease by that.
local owner, length, units = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local now = now_ms()

-- Redis before 7.2 reads the clock again at a PEXPIRE, and deletes the key if its time has just ended. A key that the
-- script then wrote would never expire.
local function is_gone(key)
  return redis.call('PTTL', key) == -2
end

local function keep(key)
  local value = value_of(key, redis.call)
  if not value then return 0 end
  if value ~= owner and value ~= owner .. MARK then return owner_in(value) == owner and 1 or -1 end
  -- The mark of a waiter is where KEPT begins.
  local rest = value == owner and KEPT or string.sub(KEPT, #MARK + 1)
  -- In this order: PEXPIRE is allowed when memory is full, and after one write of a script all others are.
  redis.call('PEXPIRE', key, length)
  if not is_gone(key) then redis.call('APPEND', key, rest) end
  give_back(KEYS[2], ARGV[4], ARGV[5])
  return 1
end

local function keep_share(key)
  local member = units .. ' ' .. owner
  local ends = redis.call('ZSCORE', key, member)
  if not ends then return redis.call('ZSCORE', key, member .. KEPT) and 1 or 0 end
  if tonumber(ends) <= now then return 0 end
  local ttl = redis.call('PTTL', key)
  redis.call('PEXPIRE', key, string.format('%.0f', math.max(ttl, length)))
  if not is_gone(key) then
    redis.call('ZADD', key, string.format('%.0f', now + length), member .. KEPT)
    redis.call('ZREM', key, member)
  end
  give_back(KEYS[2], ARGV[4], ARGV[5])
  return 1
end

local act = units == '0' and keep or keep_share
local locks = ARGV[4] == '' and #KEYS or 1
if locks == 1 then return act(KEYS[1]) end
local reply = 1
for _, key in ipairs(KEYS) do
  -- A key of another type is somebody else's, and the others do not wait for it.
  local ok, kept, refused = past_strangers(act, key)
  if refused then return refused end
  reply = math.min(reply, ok and kept or -1)
end
return reply
