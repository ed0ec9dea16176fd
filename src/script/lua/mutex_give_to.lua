-- Gives mutexes of one owner to another for the rest of their time, as the master before this one has done: a failover may
-- have lost that. value.lua and queue*.lua come before.
--
-- KEYS  for each: lock, fence, queue, waiters
-- ARGV  1 owner  2 the owner that got them  3 ms for which it gets them at least  4 life of a waiter ms
--       5 '1' if PUBLISH counts all subscribers
-- Reply 1 given  0 one of the keys is gone  -1 another owner holds one of them
-- Idempotent because it acts only while the first owner holds them, and ends that.
local owner, to = ARGV[1], ARGV[2]
life, counts_subscribers = ARGV[4], ARGV[5]

local reply = 1
for i = 1, #KEYS, 4 do
  queue, waiters = KEYS[i + 2], KEYS[i + 3]
  local value = value_of(KEYS[i], redis.call)
  if value == owner or value == owner .. MARK then
    -- It asks for the lock, or holds it, or its process ends it again.
    local _, _, _, _, channel = waiter(to)
    -- The value is marked, because others may wait, as after any hand-over.
    local rest = math.max(redis.call('PTTL', KEYS[i]), tonumber(ARGV[3]))
    redis.call('SET', KEYS[i], to .. MARK, 'PX', string.format('%.0f', rest))
    leave(to)
    if channel then wake(to, channel) end
  else
    reply = math.min(reply, value and -1 or 0)
  end
end
return reply
