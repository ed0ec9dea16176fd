-- Acquires a mutex on one node of a quorum, or joins its queue. record.lua and quorum_fence.lua come before.
-- value.lua, queue*.lua, quorum_turn.lua and quorum_acquire.lua follow.
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
if redis.call('EXISTS', KEYS[1], KEYS[3], KEYS[4]) == 0 then
  local first, last = reserve(KEYS[2], ARGV[3], ARGV[4], ARGV[5])
  if type(first) == 'table' then return first end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return {first, last, 0}
end

