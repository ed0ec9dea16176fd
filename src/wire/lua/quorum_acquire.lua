-- Acquires mutexes on one node of a quorum, all or none, or joins the queue of one of them. Most often it is one mutex; a
-- multi-lock is a set of several.
--
-- KEYS  for each, in the order of their names: lock, fence, queue, waiters
-- ARGV  1 owner  2 lease ms  3 number of fences (of a set '1' or '0')  4 fence memory ms  5 the client's clock, µs since 1970
--       6 channel: '-' if the caller does not queue, '' if it queues without a channel  7 pickup window ms (kept in the
--       waiter's record only)  8 life of a waiter ms  9 '1' if PUBLISH counts all subscribers
-- Reply {first fence, last fence, …, 1 if others wait for one of them, else 0}  this node grants: two fences for each name
--       {0, ttl ms (PTTL), holder}     held: the first held name has this holder (of another client's long value only the
--                                      beginning)
--       {0, ms, waiter}                the same, but that name is free, and the turn of that waiter for another `ms`
-- Idempotent because the owner is unique to the attempt: a repeat finds it as the holder, and grants again with higher
-- fences. It never shortens a lease. A repeat that finds a name held finds the owner's place in the queue.
--
-- A script gives a quorum's mutex only to its caller, and never to the head of a queue: the head could get it from too
-- few of the nodes. So a caller that finds the mutex free gets it, even if others wait, unless it is another's turn.
--
-- A set joins the queue of the first held name, and of no other. Until all names are free or its own, it holds none of
-- them, and each caller that finds one of them free gets it. So no two sets each keep a name that the other waits for.
--
-- While it is the turn of another process at a free name, the name counts as held. A set that has its own turn at one of
-- its names takes the others even so. Otherwise a name with several waiters would never be free for a set, which waits
-- in one queue only. A set may still wait long for two names that other owners hold most of the time, because it keeps
-- neither while it waits for the other.
--
-- Two sets that each have a turn at another name, or at another node, do not block each other: the first that asks gets
-- the names here, or leaves its queue. Besides, a turn ends by time (quorum_turn.lua).
--
-- Most often it is one mutex, which is free, and nobody waits: then one call shows that. This part stands before the
-- functions of the other files, because Redis defines a script's functions at each run, which takes longer than this part.
-- include quorum_fence.lua
if #KEYS == 4 and redis.call('EXISTS', KEYS[1], KEYS[3], KEYS[4]) == 0 then
  local first, last = reserve(KEYS[2], ARGV[3], ARGV[4], ARGV[5])
  if type(first) == 'table' then return first end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return {first, last, 0}
end

-- include quorum_turn.lua
local owner, lease = ARGV[1], ARGV[2]
life, counts_subscribers = ARGV[8], ARGV[9]

-- Makes `queue` and `waiters` those of one lock, and returns its key. `i` is the index of that key in KEYS.
local function at(i)
  queue, waiters = KEYS[i + 2], KEYS[i + 3]
  return KEYS[i]
end

-- The reads come first, so that a key of another type ends the script before it writes anything but turns.
local names, has_turn, first_held = {}, false, nil
for i = 1, #KEYS, 4 do
  local value = value_of(at(i), redis.call)
  redis.call('GET', KEYS[i + 1])
  local waiting, turn_left, whose = redis.call('ZCARD', queue), nil, nil
  if not value and waiting > 0 then
    turn_left, whose = turn_of_another(owner, ARGV[6], '1', begin_turn)
    if not whose then
      local _, who = stored_turn()
      has_turn = has_turn or who and may_use_turn(who, owner, ARGV[6], '1')
    end
    waiting = redis.call('ZCARD', queue)
  end
  names[i] = {
    value = value,
    is_holder = is_held_by(value, owner),
    score = redis.call('ZSCORE', queue, owner),
    has_record = redis.call('HGET', waiters, owner),
    waiting = waiting,
    turn_left = turn_left,
    whose = whose,
  }
end
for i = 1, #KEYS, 4 do
  local name = names[i]
  local is_held = name.value and not name.is_holder or name.whose and not has_turn
  if is_held then first_held = first_held or i end
end

-- Takes the owner out of the queue of a name.
local function leave_queue(i)
  at(i)
  if names[i].score or names[i].has_record then leave(owner) end
end

if first_held then
  for i = 1, #KEYS, 4 do
    local name = names[i]
    if i ~= first_held then
      leave_queue(i)
      if name.is_holder then redis.call('DEL', KEYS[i]) end
      -- If the name was free, this owner may be the only one that was woken. The head of the queue now asks in its
      -- place.
      if name.is_holder or name.score and not name.value then begin_turn() end
    end
  end
  local lock, value = at(first_held), names[first_held].value
  if ARGV[6] ~= '-' then
    join_for_turn(owner, ARGV[7], '1/1', ARGV[6])
    mark(lock, value)
  end
  if not value then return {0, names[first_held].turn_left, names[first_held].whose} end
  return {0, redis.call('PTTL', lock), owner_in(value)}
end

-- The records come first, so that full memory ends the script before it writes anything else. The locks come last, so
-- that no failure leaves a lock that was not granted.
local reply, contended = {}, 0
for i = 1, #KEYS, 4 do
  local first, last = reserve(KEYS[i + 1], ARGV[3], ARGV[4], ARGV[5])
  if type(first) == 'table' then return first end
  table.insert(reply, first)
  table.insert(reply, last)
  leave_queue(i)
  end_turn()
end
for i = 1, #KEYS, 4 do
  local lock, name = KEYS[i], names[i]
  local has_others = name.waiting - (name.score and 1 or 0) > 0
  if has_others then contended = 1 end
  if not name.is_holder then
    redis.call('SET', lock, has_others and owner .. MARK or owner, 'PX', lease)
  else
    at_least(lock, lease)
  end
end
table.insert(reply, contended)
return reply
