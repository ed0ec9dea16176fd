-- Releases several mutexes of which one may have waiters, or is not held by the owner. multi_release_plain.lua,
-- value.lua, queue*.lua and gap.lua come before. KEYS, ARGV and reply as in multi_release_plain.lua.
life, counts_subscribers = ARGV[2], ARGV[3]
local given = false

local function release(i)
  queue, waiters = KEYS[i + 2], KEYS[i + 3]
  leave(ARGV[1])
  local value = value_of(KEYS[i], redis.call)
  if value == ARGV[1] or value == ARGV[1] .. MARK then
    given = hand_over(KEYS[i]) or given
    return 1
  end
  if value then return -1 end
  local gap = gap_left()
  if gap and gap > 0 then
    -- In a gap, this owner may be the only one that was woken. The head of the queue now asks in its place.
    wake_head()
  elseif redis.call('ZCARD', queue) > 0 then
    -- A script that finds a lock free gives it to the first live waiter.
    hand_over(KEYS[i])
  end
  return 0
end

local reply = 1
for i = 1, #KEYS, 4 do
  local ok, released, refused = ignore_wrong_type(release, i)
  if refused then return refused end
  if not ok then
    -- The lock or a companion is a key of another type. It must not keep the other names from their release. Without a
    -- queue there is no waiter to hand the lock to.
    local value = value_of(KEYS[i], redis.pcall)
    local is_held = value == ARGV[1] or value == ARGV[1] .. MARK
    released = is_held and redis.call('DEL', KEYS[i]) or -1
  end
  reply = math.min(reply, released)
end
return reply == 1 and given and 3 or reply
