-- Ends a lease, and keeps the lock from all processes for a while longer (min_hold). value.lua and queue*.lua come
-- before.
--
-- KEYS  the locks alone: for a missing companion in a slot that is being moved, the server answers TRYAGAIN. If fences
--       are given back: one lock and its fence.
-- ARGV  1 owner  2 ms for which the lock is kept  3 its units if several owners share the lock, else 0
--       4 last fence used  5 last of its block (both '' if there are none to give back)
-- Reply 1 kept  0 one of the keys is gone  -1 another owner holds one of them
-- Idempotent because a kept lock has another owner: this one's with KEPT at its end. A repeat finds that owner and
-- changes nothing. If it acted, it would keep the lock longer, because it is sent later.
local owner, length, units = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local now = now_ms()

-- Redis before 7.2 reads the clock again at a PEXPIRE. If the key's time has just ended, it deletes the key. A key that
-- the script then wrote would never expire.
local function is_gone(key)
  return redis.call('PTTL', key) == -2
end

local function keep(key)
  local value = value_of(key, redis.call)
  if not value then return 0 end
  if value ~= owner and value ~= owner .. MARK then return owner_in(value) == owner and 1 or -1 end
  -- KEPT begins with the mark. A marked value has that already.
  local rest = value == owner and KEPT or string.sub(KEPT, #MARK + 1)
  -- PEXPIRE comes first, because Redis allows it when memory is full. After its first write a script may
  -- always write.
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
    -- A key of another type is not a lock. It must not keep the other locks from their end.
  local ok, kept, refused = ignore_wrong_type(act, key)
  if refused then return refused end
  reply = math.min(reply, ok and kept or -1)
end
return reply
