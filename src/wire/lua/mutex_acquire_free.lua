-- Acquires a free mutex without a look into the queue: the fast path. record.lua and fence.lua come
-- before; value.lua, queue.lua, mutex_acquire_held.lua, queue_*.lua, gap.lua and mutex_acquire.lua follow.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 owner  2 lease ms  3 number of fences; '0' if the lock gets none, and its fence is then 0
--       4 fence memory ms
--       5 'take' (take a free lock at once) or 'poll' (let the queue go first)
--       6 channel: '-' if the caller does not queue, '' if it queues without a channel. If the caller takes a grant by
--       message, ' <number of fences, 0 or 1> <nonce>' follows the channel.  7 pickup window ms
--       8 life of a waiter ms  9 '1' if PUBLISH counts all subscribers
-- Reply first fence                    granted
--       {first fence, 1}               granted, and others wait
--       {0, ttl ms (PTTL), holder}     held (of another client's long value only the beginning)
-- Idempotent because the owner is unique to the attempt: a repeat finds it as the holder, and grants again.
if ARGV[5] == 'take' and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local fence = next_fences(KEYS[2], ARGV[3], ARGV[4])
  -- Scripts do not roll back, so the lock is deleted here: without a fence it would be of no use to its owner.
  if type(fence) == 'table' then redis.call('DEL', KEYS[1]) end
  return fence
end
-- Otherwise go on in the files that follow.
