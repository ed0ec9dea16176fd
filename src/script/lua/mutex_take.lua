-- Acquires a mutex: the fast path. fence.lua comes before; value.lua, queue.lua, gap.lua and
-- mutex_wait.lua after it.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 owner  2 lease ms  3 number of fences  4 fence memory ms
--       5 'take' (a free lock is taken at once) or 'poll' (the queue goes first)
--       6 channel, '-' where the caller does not queue  7 pickup window ms  8 life of a waiter ms  9 heard
-- Reply first fence                    granted
--       {first fence, 1}               granted, and others wait
--       {0, ttl ms (PTTL), holder}     held (of another client's long value the beginning)
-- Idempotent because the owner is unique to the attempt: found as the holder, it is granted again.
if ARGV[5] == 'take' and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local fence = next_fences(KEYS[2], ARGV[3], ARGV[4])
  -- Scripts do not roll back: a lock without a fence would be an orphan.
  if type(fence) == 'table' then redis.call('DEL', KEYS[1]) end
  return fence
end

