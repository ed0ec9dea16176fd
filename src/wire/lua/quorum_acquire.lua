-- Acquires a mutex on one node of a quorum, or joins its queue.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 owner  2 lease ms  3 number of fences  4 fence memory ms  5 the client's clock, µs since 1970
--       6 channel: '-' if the caller does not queue, '' if it queues without a channel  7 pickup window ms (kept in the
--       waiter's record only)  8 life of a waiter ms  9 '1' if PUBLISH counts all subscribers
-- Reply {first fence, last fence, 1 if others wait, else 0}  this node grants
--       {0, ttl ms (PTTL), holder}     held (of another client's long value only the beginning)
--       {0, ms, waiter}                free, but the turn of that waiter for another `ms`
-- Idempotent because the owner is unique to the attempt: a repeat finds it as the holder, and grants again with higher
-- fences. It never shortens the lease. A repeat that finds the mutex held finds the owner's place in the queue.
--
-- A script gives a quorum's mutex only to its caller, and never to the head of a queue: the head could get it from too
-- few of the nodes. So a caller that finds the mutex free gets it, even if others wait, unless it is another's turn.
--
-- Most often the mutex is free, and nobody waits: then one call shows that. This part stands before the functions of the
-- other files, because Redis defines a script's functions at each run, which takes longer than this part.
-- include quorum_fence.lua
if redis.call('EXISTS', KEYS[1], KEYS[3], KEYS[4]) == 0 then
  local first, last = reserve(KEYS[2], ARGV[3], ARGV[4], ARGV[5])
  if type(first) == 'table' then return first end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return {first, last, 0}
end

-- include quorum_turn.lua
local lock, owner, lease = KEYS[1], ARGV[1], ARGV[2]
queue, waiters, life, counts_subscribers = KEYS[3], KEYS[4], ARGV[8], ARGV[9]

local value = value_of(lock, redis.call)
local is_holder = is_held_by(value, owner)

local left, who
if not value then
  left, who = turn_of_another(owner, ARGV[6], '1', begin_turn)
elseif not is_holder then
  left, who = redis.call('PTTL', lock), owner_in(value)
end
if left then
  if ARGV[6] ~= '-' then
    join_for_turn(owner, ARGV[7], '1/1', ARGV[6])
    mark(lock, value)
  end
  return {0, left, who}
end

-- The reads come first, so that a companion of another type ends the script before it writes anything. Then comes the
-- record, so that full memory does the same. The lock comes last, so that no failure leaves a lock that was not
-- granted.
local score, record = redis.call('ZSCORE', queue, owner), redis.call('HGET', waiters, owner)
local turn = redis.call('HGET', waiters, TURN)
local others = redis.call('ZCARD', queue) - (score and 1 or 0)
local first, last = reserve(KEYS[2], ARGV[3], ARGV[4], ARGV[5])
if type(first) == 'table' then return first end
if score or record then leave(owner) end
if turn then end_turn() end

if not is_holder then
  redis.call('SET', lock, others > 0 and owner .. MARK or owner, 'PX', lease)
else
  at_least(lock, lease)
end
return {first, last, others > 0 and 1 or 0}
