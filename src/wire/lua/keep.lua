-- Ends a lease, and keeps the lock from all processes for a while longer (min_hold).
--
-- A waiter that asked before this script knows only when the lease would have ended. So the script also wakes the first
-- live waiter, which asks again. The reply tells it when the lock is free.
--
-- KEYS  the locks alone: for a missing companion in a slot that is being moved, the server answers TRYAGAIN. If the script
--       wakes a waiter: for each lock: lock, fence, queue, waiters
-- ARGV  1 owner  2 ms for which the lock is kept  3 its units if several owners share the lock, else 0
--       If the script wakes a waiter: 4 last fence used  5 last of its block (both '' if there are none to give back)
--       6 life of a waiter ms  7 '1' if PUBLISH counts all subscribers
-- Reply 1 kept  2 others may wait, and none was woken  0 one of the keys is gone  -1 another owner holds one of them
-- Idempotent because a kept lock has another owner: this one's with KEPT at its end. A repeat finds that owner and
-- changes nothing. If it acted, it would keep the lock longer, because it is sent later. To be woken twice does no harm.
-- include queue_next.lua
-- include quorum_share.lua on a quorum
local owner, length, units = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local wakes, now = ARGV[6] ~= nil, now_ms()
local step = wakes and 4 or 1
life, counts_subscribers = ARGV[6], ARGV[7]

-- Redis before 7.2 reads the clock again at a PEXPIRE. If the key's time has just ended, it deletes the key. A key that
-- the script then wrote would never expire.
local function is_gone(key)
  return redis.call('PTTL', key) == -2
end

local function keep(key)
  local value = value_of(key, redis.call)
  if not value then return 0 end
  if value ~= owner and value ~= owner .. MARK then return owner_in(value) == owner and 2 or -1 end
  -- KEPT begins with the mark. A marked value has that already.
  local rest = value == owner and KEPT or string.sub(KEPT, #MARK + 1)
  -- PEXPIRE comes first, because Redis allows it when memory is full. After its first write a script may
  -- always write.
  redis.call('PEXPIRE', key, length)
  if not is_gone(key) then redis.call('APPEND', key, rest) end
  -- Without the mark nobody waits.
  return value == owner and 1 or 2
end

local function keep_share(key)
  local member = units .. ' ' .. owner
  local ends = redis.call('ZSCORE', key, member)
  if not ends then return redis.call('ZSCORE', key, member .. KEPT) and 2 or 0 end
  if tonumber(ends) <= now then return 0 end
  local ttl = redis.call('PTTL', key)
  redis.call('PEXPIRE', key, string.format('%.0f', math.max(ttl, length)))
  if not is_gone(key) then
    redis.call('ZADD', key, string.format('%.0f', now + length), member .. KEPT)
    redis.call('ZREM', key, member)
  end
  return 2
end

local act = units == '0' and keep or keep_share
local reply, may_have_waiters = 1, false
for i = 1, #KEYS, step do
  local kept
  if #KEYS == step then
    kept = act(KEYS[i])
  else
    -- A key of another type is not a lock. It must not keep the other locks from their end.
    local ok, result, refused = ignore_wrong_type(act, KEYS[i])
    if refused then return refused end
    kept = ok and result or -1
  end
  if wakes and kept > 0 then
    give_back(KEYS[i + 1], ARGV[4], ARGV[5])
    queue, waiters = KEYS[i + 2], KEYS[i + 3]
    -- By pcall: the lock is kept, so an error of its queue would mislead the caller.
    if kept == 2 then pcall(wake_head, length) end
  end
  may_have_waiters = may_have_waiters or kept == 2
  reply = math.min(reply, kept)
end
return may_have_waiters and not wakes and 2 or reply
