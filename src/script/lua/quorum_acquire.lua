-- Acquires a mutex on one node of a quorum, or joins its queue. fence.lua, value.lua, queue.lua, quorum_turn.lua and
-- quorum_fence.lua come before.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 owner  2 lease ms  3 number of fences  4 fence memory ms  5 the client's clock, µs since 1970
--       6 channel: '-' if the caller does not queue, '' if it queues without a channel  7 pickup window ms (kept in the
--       waiter's record only)  8 life of a waiter ms  9 '1' if PUBLISH counts all subscribers
-- Reply {first fence, last fence, 1 if others wait, else 0}  this node grants
--       {0, ttl ms (PTTL), holder}     held (of another client's long value only the beginning), or free, but for so many
--                                      ms it is the turn of that waiter
-- Idempotent because the owner is unique to the attempt: a repeat finds it as the holder, and grants again with higher
-- fences. It never shortens the lease. A repeat that finds the mutex held finds the owner's place in the queue.
--
-- A script gives a quorum's mutex only to its caller, and never to the head of a queue: the head could get it from too
-- few of the nodes. So a caller that finds the mutex free gets it, even if others wait, unless it is another's turn.
local lock, owner, lease = KEYS[1], ARGV[1], ARGV[2]
queue, waiters, life, counts_subscribers = KEYS[3], KEYS[4], ARGV[8], ARGV[9]

-- Most often the mutex is free and nobody waits: then one call replaces all others that read.
if redis.call('EXISTS', lock, queue, waiters) == 0 then
  local first, last = reserve(KEYS[2], ARGV[3], ARGV[4], ARGV[5])
  if type(first) == 'table' then return first end
  redis.call('SET', lock, owner, 'PX', lease)
  return {first, last, 0}
end

local value = value_of(lock, redis.call)
local is_holder = value == owner or value == owner .. MARK

if value and not is_holder then
  if ARGV[6] ~= '-' then
    join(owner, ARGV[7], '1/1', ARGV[6])
    if is_ours(value) and not is_marked(value) then redis.pcall('APPEND', lock, MARK) end
  end
  return {0, redis.call('PTTL', lock), owner_in(value)}
end

if not value then
  local left, who = turn_of_another(owner, ARGV[6])
  if left then
    if ARGV[6] ~= '-' then join(owner, ARGV[7], '1/1', ARGV[6]) end
    return {0, left, who}
  end
end

-- The reads come first, so that a companion of another type ends the script before it writes anything. Then comes the
-- record, so that full memory does the same. The lock comes last, so that no failure leaves a lock that was not
-- granted.
local ticket, record = redis.call('ZSCORE', queue, owner), redis.call('HGET', waiters, owner)
local turn = redis.call('HGET', waiters, TURN)
local others = redis.call('ZCARD', queue) - (ticket and 1 or 0)
local first, last = reserve(KEYS[2], ARGV[3], ARGV[4], ARGV[5])
if type(first) == 'table' then return first end
if ticket or record then leave(owner) end
if turn then end_turn() end

if not is_holder then
  redis.call('SET', lock, others > 0 and owner .. MARK or owner, 'PX', lease)
elseif redis.call('PTTL', lock) < tonumber(lease) then
  -- PEXPIRE and not SET, because SET would remove the mark.
  redis.call('PEXPIRE', lock, lease)
end
return {first, last, others > 0 and 1 or 0}
