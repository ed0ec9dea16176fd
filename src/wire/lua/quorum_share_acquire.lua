-- Acquires a reader-writer lock on one node of a quorum, or joins its queue.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 to 9 as in quorum_acquire.lua (3 is '1' or '0' for a reader)  10 units: 1 for a reader, ALL for a writer
--       11 '1' if a writer has just become this reader, else '0'
-- Reply {first fence, last fence, 1 if others wait, else 0}  this node grants: a reader has the record of the last
--                                                            fence as first and last
--       {0, ttl ms, holder}            held by this writer
--       {0, ttl ms, holder, 1}         held by readers, and this is the lease that ends first
--       {0, ms, waiter}                free, but the turn of that waiter for another `ms`
--       {0, ms, waiter, 1}             the same, and the waiter is a reader that is still in the queue
-- Idempotent because the owner is unique to the attempt: a repeat finds it as a holder, and grants again. It never
-- shortens the lease. A repeat that finds the lock held finds the owner's place in the queue.
--
-- A script gives a quorum's lock only to its caller. A caller that finds its units free gets them, with two exceptions:
-- * Readers hold the lock. A reader does not join them while a live writer is before it in the queue. So readers that
--   follow each other without a gap keep no writer out.
-- * Nobody holds the lock, and it is the turn of another process. Until the turn is over, the caller passes no live waiter
--   in the queue, unless both are readers.
-- A caller that is not in the queue comes after all waiters. Only waiters that are awake (queue.lua), and whose
-- channel has a subscriber, count as live.
--
-- Waiters cannot block each other for ever, even if each stands first at another node. The first exception lasts only
-- while readers hold the lock here. Their leases end, and a turn ends by time (quorum_turn.lua).
--
-- A writer that becomes a reader passes all waiters. It has just released the lock, by the same write, and no other
-- writer may come in between.
-- include share.lua
lock, queue, waiters, life, counts_subscribers = KEYS[1], KEYS[3], KEYS[4], ARGV[8], ARGV[9]
local owner, lease, units = ARGV[1], ARGV[2], ARGV[10]
-- Before the `open` of quorum_share.lua, which does not look at the queue.
local refused = open()
if refused then return refused end
-- The counts are written before anything can fail.
if has_expired then close() end
if used > 0 and total ~= ALL then return redis.error_reply('WRONGTYPE a lock of another kind has this name') end
total = ALL

-- include quorum_share.lua
-- include quorum_fence.lua

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

local is_holder = redis.call('ZSCORE', lock, units .. ' ' .. owner)
local score = redis.call('ZSCORE', queue, owner)
local waiting = redis.call('ZCARD', queue)
local others = waiting - (score and 1 or 0)

-- Returns whether a waiter that is awake stands before the caller, and may not share the lock with it.
local function is_behind_another()
  local silent = 0
  for _, who in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
    if who == owner then return false end
    local seen, pickup, its_units, _, channel = waiter(who)
    local may_share = units == '1' and its_units == '1'
    local state = state_of(seen, pickup, channel)
    if not may_share and state == 'awake' and may_have_subscriber(channel) then return true end
    if state == 'silent' then silent = silent + 1 end
    if silent == MOST_PASSED then return false end
  end
  return false
end

-- Returns for how many ms the caller has to wait, for whom, and 1 if that is a reader. Returns nil if the caller may have
-- the lock.
local function must_wait()
  if fits(units, ALL) then
    if others == 0 or ARGV[11] == '1' then return nil end
    local left, who
    if used == 0 then
      left, who = turn_of_another(owner, ARGV[6], units, wake_first)
      if not left then return nil end
    end
    if not is_behind_another() then return nil end
    if left then
      local _, _, its_units = waiter(who)
      return left, who, its_units == '1' and 1 or nil
    end
  end
  local first = redis.call('ZRANGEBYSCORE', lock, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local its_units, holder = string.match(first[1], '^(%d+) (.*)$')
  return first[2] - now, owner_in(holder), its_units == '1' and 1 or nil
end

if not is_holder then
  local left, who, is_reader = must_wait()
  if left then
    if ARGV[6] ~= '-' then join_for_turn(owner, ARGV[7], units .. '/' .. ALL, ARGV[6]) end
    return {0, left, who, is_reader}
  end
end

-- The reads and the record come first, and the lock comes last, as in quorum_acquire.lua.
local has_record = redis.call('HGET', waiters, owner)
local first, last
if units == '1' and ARGV[3] ~= '0' then
  first, last = fences_of_reader(KEYS[2], ARGV[4], ARGV[5])
else
  first, last = reserve(KEYS[2], ARGV[3], ARGV[4], ARGV[5])
end
if type(first) == 'table' then return first end
if score or has_record then leave(owner) end
if waiting > 0 then
  end_turn()
  others = redis.call('ZCARD', queue)
end
hold(owner, units, lease, ALL)
close()
return {first, last, others > 0 and 1 or 0}
