-- Acquires a reader-writer lock on one node of a quorum, or joins its queue. record.lua, value.lua, queue.lua,
-- share.lua and quorum_fence.lua come before.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 to 9 as in quorum_acquire_free.lua (3 is ignored for a reader)  10 units: 1 for a reader, ALL for a writer
-- Reply {first fence, last fence, 1 if others wait, else 0}  this node grants: a reader has the record of the last
--                                                            fence as first and last
--       {0, ttl ms, holder}            held, and this is the lease that ends first
-- Idempotent because the owner is unique to the attempt: a repeat finds it as a holder, and grants again. It never
-- shortens the lease. A repeat that finds the lock held finds the owner's place in the queue.
--
-- As in quorum_acquire.lua, a caller that finds its units free gets them, even if others wait. So readers that follow
-- each other without a gap keep a writer out. Their processes learn from the reply that others wait.

-- Returns the fences of a reader, which reserves none: its first and last fence are the record. If Redis has forgotten
-- the record, it reserves one fence. That is between the last writer's and the next writer's. Returns an error as a
-- table.
local function fences_of_reader(key, memory, clock)
  local record = redis.pcall('GET', key)
  if type(record) == 'table' then return record end
  local last = last_fence(record)
  if last > 0 then return last, last end
  return reserve(key, 1, memory, clock)
end

lock, queue, waiters, life, counts_subscribers = KEYS[1], KEYS[3], KEYS[4], ARGV[8], ARGV[9]
local owner, lease, units = ARGV[1], ARGV[2], ARGV[10]
local refused = open()
if refused then return refused end
-- The counts are written before anything can fail.
if has_expired then close() end
if used > 0 and total ~= ALL then return redis.error_reply('WRONGTYPE a lock of another kind has this name') end
total = ALL

if not redis.call('ZSCORE', lock, units .. ' ' .. owner) and not fits(units) then
  if ARGV[6] ~= '-' then join(owner, ARGV[7], units .. '/' .. ALL, ARGV[6]) end
  local first = redis.call('ZRANGEBYSCORE', lock, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return {0, first[2] - now, owner_in(string.match(first[1], ' (.*)$'))}
end

-- The reads and the record come first, and the lock comes last, as in quorum_acquire.lua.
local ticket, has_record = redis.call('ZSCORE', queue, owner), redis.call('HGET', waiters, owner)
local others = redis.call('ZCARD', queue) - (ticket and 1 or 0)
local first, last
if units == '1' then
  first, last = fences_of_reader(KEYS[2], ARGV[4], ARGV[5])
else
  first, last = reserve(KEYS[2], ARGV[3], ARGV[4], ARGV[5])
end
if type(first) == 'table' then return first end
if ticket or has_record then leave(owner) end
hold(owner, units, lease)
close()
return {first, last, others > 0 and 1 or 0}
