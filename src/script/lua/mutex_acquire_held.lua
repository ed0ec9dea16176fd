-- Joins the queue of a mutex that another owner holds. mutex_acquire_free.lua, value.lua and queue.lua come before;
-- queue_*.lua, gap.lua, recall.lua and mutex_acquire.lua follow.
-- KEYS, ARGV and reply as in mutex_acquire_free.lua.
--
-- This part stands before most functions, because Redis defines a script's functions at each run.
local lock, owner, lease = KEYS[1], ARGV[1], ARGV[2]
queue, waiters, life, counts_subscribers = KEYS[3], KEYS[4], ARGV[8], ARGV[9]

local value = value_of(lock, redis.call)
local is_holder = value == owner or value == owner .. MARK

-- Joins the queue, if the caller queues. Returns the reply that another owner holds the mutex. `recall` is the function of
-- recall.lua, or nil if the holder need not be recalled.
local function held_by_another(recall)
  if ARGV[6] ~= '-' then
    local is_new = join(owner, ARGV[7], '1/1', ARGV[6])
    if is_ours(value) then
      if not is_marked(value) then redis.pcall('APPEND', lock, MARK) end
      if recall then recall(lock, value, owner, is_new) end
    end
  end
  return {0, redis.call('PTTL', lock), owner_in(value)}
end

-- A holder whose UUID has version 8 is recallable.
if value and not is_holder and string.sub(value, 19, 19) ~= '8' then return held_by_another() end
