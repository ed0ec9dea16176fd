-- Acquires several mutexes, all or none. fence.lua, value.lua, queue.lua and gap.lua come before.
--
-- KEYS  for each, in the order of their names: lock, fence, queue, waiters
-- ARGV  1 to 9 as in mutex_take.lua (3 is 1; 5 is not looked at)  10 the owner that ends, or ''
-- Reply {fence of the first, …, 0}     granted
--       {0, ms, holder}                held, the first by this owner; ask again after this time at the latest
-- Idempotent because the owner is unique to the attempt: found as the holder, it is granted again.
--
-- A set waits like this:
--
-- | the set | what it does |
-- | --- | --- |
-- | finds all names free or its own | takes them all |
-- | finds one free, and others in its queue | gives it to the next of them, or takes its turn there if it is the next itself |
-- | finds one in a gap (gap.lua) | it counts as held by its last owner until the gap ends |
-- | finds some held | joins the queue of the first that is held, and of no other; the free ones stay free |
-- | is handed that one, and finds another held after it | keeps it, and stands in front of the other's queue |
-- | is handed that one, and finds another held before it | hands it on, and stands in front of the other's queue |
--
-- So it keeps a name only if it waits for none before it: no two sets keep what the other waits for. A name is kept by
-- the set's owner, for the pickup window, and each request begins that window again; the reply has the process ask in
-- time. So a process that dies delays others by one window.
--
-- At the first name a set waits its turn. At the front of a further queue it takes turns with the waiters that did not come
-- to the front (queue.lua). So each further name costs at most two holds, however long these are, and two more for each
-- set that came to its front earlier.
local owner, channel, window = ARGV[1], ARGV[6], tonumber(ARGV[7])
life, heard = ARGV[8], ARGV[9]

-- Turns to one of them.
local function at(i)
  queue, waiters = KEYS[i + 2], KEYS[i + 3]
  return KEYS[i]
end

local function is_held_by(value, who)
  return value == who or value == who .. MARK
end

-- By call, so that a key of another type ends this before anything is written.
local values, queued, gaps, busy, was_handed = {}, {}, {}, nil, false
for i = 1, #KEYS, 4 do
  values[i] = value_of(KEYS[i], redis.call)
  queued[i] = redis.call('ZCARD', KEYS[i + 2]) > 0
  redis.call('HGET', KEYS[i + 3], owner)
end

if ARGV[10] ~= '' then
  for i = 1, #KEYS, 4 do
    if is_held_by(values[i], ARGV[10]) then
      local lock = at(i)
      hand_over(lock)
      values[i] = value_of(lock, redis.call)
    end
  end
end

for i = 1, #KEYS, 4 do
  if not values[i] and queued[i] then
    local lock = at(i)
    local left, before = gap_left()
    if left and left > 0 then
      gaps[i] = {left, before}
    else
      -- Only waiters that have polled lately are believed, as in mutex_wait.lua.
      local head, pickup = next_waiter(owner, life / 2)
      if head then give(lock, head, pickup or window) end
      values[i] = value_of(lock, redis.call)
    end
  end
  if is_held_by(values[i], owner) then
    was_handed = true
  elseif (values[i] or gaps[i]) and not busy then
    busy = i
  end
end

if not busy then
  local reply = {}
  for i = 1, #KEYS, 4 do
    local fence = next_fences(KEYS[i + 1], '1', ARGV[4])
    if type(fence) == 'table' then return fence end
    table.insert(reply, fence)
  end
  for i = 1, #KEYS, 4 do
    local lock = at(i)
    leave(owner)
    if not give(lock, owner, ARGV[2]) then return redis.error_reply('OOM no memory for the lock') end
  end
  table.insert(reply, 0)
  return reply
end

local ttl = gaps[busy] and gaps[busy][1] or redis.call('PTTL', KEYS[busy])
for i = 1, #KEYS, 4 do
  local lock = at(i)
  if i ~= busy then
    leave(owner)
    if is_held_by(values[i], owner) and i < busy and channel ~= '-' then
      redis.call('PEXPIRE', lock, window)
      -- Two requests may be late or lost.
      local ask_again = math.floor(window / 3)
      if ttl < 0 or ask_again < ttl then ttl = ask_again end
    elseif is_held_by(values[i], owner) then
      -- Also what is left of an earlier grant whose answer was lost.
      hand_over(lock)
    end
  elseif channel ~= '-' then
    join(owner, ARGV[7], '1/1', channel, was_handed)
    local value = values[i]
    if value and is_ours(value) and not is_marked(value) then redis.pcall('APPEND', lock, MARK) end
  end
end
return {0, ttl, owner_in(values[busy] or gaps[busy][2])}
