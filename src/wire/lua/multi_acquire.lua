-- Acquires several mutexes, all or none.
--
-- KEYS  for each, in the order of their names: lock, fence, queue, waiters
-- ARGV  1 to 9 as in mutex_acquire.lua (3 is '1' or '0'; 5 is ignored)  10 the owner that ends, or ''
-- Reply {fence of the first, …, 0}     granted
--       {0, ms, holder}                held: the first held name has this holder; ask again within this time
-- Idempotent because the owner is unique to the attempt: a repeat finds it as the holder, and grants again.
--
-- A set waits like this:
--
-- | the set | the script |
-- | --- | --- |
-- | finds all names free or its own | takes them all |
-- | finds one free, with waiters in its queue | gives it to the next waiter, which may be this set |
-- | finds one in a gap (gap.lua) | treats it as held by its last owner until the gap ends |
-- | finds some held | joins the queue of the first held name, and of no other; the free names stay free |
-- | was handed that one, and finds another held after it | keeps it, and joins the front of the other's queue |
-- | was handed that one, and finds another held before it | hands it on, and joins the front of the other's queue |
--
-- So a set keeps a name only while it waits for a later one. No two sets each keep a name that the other waits for.
-- The set's owner keeps a name for at least the pickup window. Each request begins that window again, and the reply
-- makes the process ask in time. So a process that dies delays the others by one window, or by the rest of the lease if
-- a lost reply granted the name.
--
-- At the first held name a set waits for its turn. At the front of a further queue it takes turns with the waiters that
-- did not come to the front (queue_next.lua). So each further name costs at most two leases of other owners, and two more
-- for each set that came to that front earlier.
--
-- Most often all names are free, and nobody waits. This part stands before the functions of the other files, because
-- Redis defines a script's functions at each run, which takes longer than this part.
-- include fence.lua

-- Returns the fences of all names for the reply, or an error.
local function fences_of_all()
  local time, fences = ARGV[3] ~= '0' and redis.pcall('TIME'), {}
  for i = 1, #KEYS, 4 do
    local fence = next_fences(KEYS[i + 1], ARGV[3], ARGV[4], time)
    if type(fence) == 'table' then return fence end
    table.insert(fences, fence)
  end
  table.insert(fences, 0)
  return fences
end

-- Returns whether no lock, queue or waiter is there. One command asks for all of them: a set has at most 1,000 names, and
-- Lua passes at most 8,000 arguments to a command.
local function are_free()
  local keys = {}
  for i = 1, #KEYS, 4 do
    table.insert(keys, KEYS[i])
    table.insert(keys, KEYS[i + 2])
    table.insert(keys, KEYS[i + 3])
  end
  return redis.call('EXISTS', unpack(keys)) == 0
end

if are_free() then
  local fences = fences_of_all()
  if fences.err then return fences end
  for i = 1, #KEYS, 4 do redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2]) end
  return fences
end

-- include gap.lua
local owner, channel, window = ARGV[1], ARGV[6], tonumber(ARGV[7])
life, counts_subscribers = ARGV[8], ARGV[9]

-- Makes `queue` and `waiters` those of one lock, and returns its key. `i` is the index of that key in KEYS.
local function at(i)
  queue, waiters = KEYS[i + 2], KEYS[i + 3]
  return KEYS[i]
end

-- By call, so that a key of another type ends the script before it writes anything.
local values, queued, gaps, first_held, was_handed = {}, {}, {}, nil, false
for i = 1, #KEYS, 4 do
  values[i] = value_of(at(i), redis.call)
  queued[i] = redis.call('ZCARD', queue) > 0
  local left, before = gap_left()
  if left and left > 0 then gaps[i] = {left, before} end
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
  if values[i] then gaps[i] = nil end
  if not values[i] and not gaps[i] and queued[i] then
    local lock = at(i)
    local head = hand_to_next(lock, owner)
    if head == owner then give(lock, owner, window) end
    values[i] = value_of(lock, redis.call)
  end
  if is_held_by(values[i], owner) then
    was_handed = true
  elseif (values[i] or gaps[i]) and not first_held then
    first_held = i
  end
end

if not first_held then
  local fences = fences_of_all()
  if fences.err then return fences end
  for i = 1, #KEYS, 4 do
    local lock = at(i)
    leave(owner)
    if is_held_by(values[i], owner) then
      -- This may be a late copy of a request. A later request, or a renewal, may have made the lease longer.
      at_least(lock, ARGV[2])
    else
      local refused = give(lock, owner, ARGV[2])
      if refused then return refused end
    end
  end
  return fences
end

local ttl = gaps[first_held] and gaps[first_held][1] or redis.call('PTTL', KEYS[first_held])
for i = 1, #KEYS, 4 do
  local lock = at(i)
  if i ~= first_held then
    leave(owner)
    if is_held_by(values[i], owner) and i < first_held and channel ~= '-' then
      at_least(lock, window)
      -- A third of the window, so that two requests may be late or lost.
      local ask_again = math.floor(window / 3)
      if ttl < 0 or ask_again < ttl then ttl = ask_again end
    elseif is_held_by(values[i], owner) then
      -- The script hands on a name that comes after the first held name, or that a lost reply granted. It does the same
      -- for a late copy of a request that was granted, if the set has lost its first name and another owner has taken
      -- it: the lease of each later name ends then. The script cannot tell this from a grant whose reply was lost.
      hand_over(lock)
    end
  elseif channel ~= '-' then
    join(owner, ARGV[7], '1/1', channel, was_handed)
    mark(lock, values[i])
  end
end
return {0, ttl, owner_in(values[first_held] or gaps[first_held][2])}
