-- Releases several mutexes, each to the first waiter that is alive, or to nobody. queue.lua comes before it.
--
-- KEYS  for each: lock, fence, queue, waiters
-- ARGV  1 owner  2 life of a waiter ms  3 heard
-- Reply 1 released  3 released, and one at least given to a waiter  0 one of the keys was gone  -1 another owner holds one of them
-- Idempotent because it acts only on what this owner holds, and ends that.
life, heard = ARGV[2], ARGV[3]
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
  -- Whoever finds one free gives it to those who wait.
  if redis.call('ZCARD', queue) > 0 then hand_over(KEYS[i]) end
  return 0
end

local reply = 1
for i = 1, #KEYS, 4 do
  local ok, released, refused = past_strangers(release, i)
  if refused then return refused end
  if not ok then
    -- The lock may be a stranger itself, and keeps none of the others. Where that is a companion, there is nobody to
    -- hand the lock to.
    local value = value_of(KEYS[i], redis.pcall)
    local is_held = value == ARGV[1] or value == ARGV[1] .. MARK
    released = is_held and redis.call('DEL', KEYS[i]) or -1
  end
  reply = math.min(reply, released)
end
return reply == 1 and given and 3 or reply
