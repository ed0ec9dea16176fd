-- Joins the queue of a mutex that another owner holds. mutex_acquire_free.lua, value.lua and queue.lua come before;
-- queue_*.lua, gap.lua and mutex_acquire.lua follow.
-- KEYS, ARGV and reply as in mutex_acquire_free.lua.
--
-- This part stands before most functions, because Redis defines a script's functions at each run.
local lock, owner, lease = KEYS[1], ARGV[1], ARGV[2]
queue, waiters, life, counts_subscribers = KEYS[3], KEYS[4], ARGV[8], ARGV[9]

local value = value_of(lock, redis.call)
local is_holder = value == owner or value == owner .. MARK

-- Joins the queue, if the caller queues. Returns the reply that another owner holds the mutex.
local function held_by_another()
  if ARGV[6] ~= '-' then
    join(owner, ARGV[7], '1/1', ARGV[6])
    if is_ours(value) and not is_marked(value) then redis.pcall('APPEND', lock, MARK) end
  end
  return {0, redis.call('PTTL', lock), owner_in(value)}
end

if value and not is_holder then return held_by_another() end
