-- Shared: the leases that several owners have of one lock, which is divided into units.
--
-- `lock` is a sorted set of '<units> <owner>', each with the ms at which its lease ends. Two members count units, by a
-- score below zero: '=of' has minus the number of units of the lock, '=used' has minus the number in use.
-- Processes may give a semaphore different numbers. Each owner counts the units in use against its own number, which its
-- record in the queue has too. '=of' has the number of the last owner that was let in.
-- A reader-writer lock has ALL units. A writer takes them all, a reader takes one.
-- include queue_next.lua
local ALL = 4294967295

-- The state of the lock, which `open` reads.
local lock, total, used, now
-- Whether a lease has expired, and whether a writer's lease has ended, in this script.
local has_expired, writer_ended = false, false
-- Whether a waiter was given units in this script.
local given = false

-- Ends a lease. Returns false if there is none.
local function drop(member)
  if redis.call('ZREM', lock, member) == 0 then return false end
  local units = tonumber(string.match(member, '^%d+'))
  used = used - units
  writer_ended = writer_ended or units == ALL
  return true
end

-- Reads the lock, and ends expired leases. Returns an error if the sorted set is no lock.
local function open_lock()
  now = now_ms()
  local stored = redis.call('ZSCORE', lock, '=of')
  if not stored and redis.call('EXISTS', lock) == 1 then
    return redis.error_reply('WRONGTYPE a sorted set that is no lock has this name')
  end
  total = -(stored or 0)
  used = -(redis.call('ZSCORE', lock, '=used') or 0)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', lock, 0, now)) do
    has_expired = drop(member)
  end
end

-- Does the same as open_lock, for a script that needs the queue. The script fails here, before other writes, if a key
-- has another type or the caller may not read the queue.
local function open()
  redis.call('ZRANGE', queue, 0, 0)
  redis.call('HLEN', waiters)
  return open_lock()
end

local function fits(units, its_total)
  return used + units <= tonumber(its_total)
end

-- Gives `owner` a lease of this number of units for `ttl` ms, or raises its lease to that. The same command writes the
-- counts, so that the lease is complete even if a later command fails. The process that asked for it then releases it.
local function hold(owner, units, ttl, its_total)
  total = tonumber(its_total)
  local member = units .. ' ' .. owner
  local ends = redis.call('ZSCORE', lock, member)
  if not ends then used = used + units end
  if not ends or tonumber(ends) < now + ttl then
    redis.call('ZADD', lock, string.format('%.0f', now + ttl), member, -total, '=of', -used, '=used')
  end
end

-- Gives free units to waiters, for their pickup windows, and wakes them. After a writer, all readers that wait come
-- first; otherwise it is first come, first served. `self` gets `lease` ms, and needs no waking.
-- Passes over waiters and drops them on the way, as queue.lua says. Returns false if a waiter that is awake must
-- wait.
local function advance(self, lease)
  local function let_in(owner, pickup, units, its_total, channel)
    leave(owner)
    if owner == self then return hold(owner, units, lease, its_total) end
    if not wake(owner, channel) then return end
    hold(owner, units, pickup, its_total)
    given = true
  end
  local function waiter_and_state(owner)
    local seen, pickup, units, its_total, channel = waiter(owner)
    local state = owner == self and seen and 'awake' or state_of(seen, pickup, channel)
    return state, pickup, units, its_total, channel
  end
  if writer_ended then
    local silent = 0
    for _, owner in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
      local state, pickup, units, its_total, channel = waiter_and_state(owner)
      local is_reader = units == '1' and tonumber(its_total) == ALL
      if is_reader and state == 'awake' then let_in(owner, pickup, units, its_total, channel) end
      if state == 'silent' then silent = silent + 1 end
      if silent == MOST_PASSED then break end
    end
  end
  local place = 0
  while place < MOST_PASSED do
    local owner = redis.call('ZRANGE', queue, place, place)[1]
    if not owner then break end
    local state, pickup, units, its_total, channel = waiter_and_state(owner)
    -- A waiter may ask for a lock of another kind. The reply to its next poll tells it.
    if state == 'gone' or used > 0 and (tonumber(its_total) == ALL) ~= (total == ALL) then
      leave(owner)
    elseif state == 'silent' then
      place = place + 1
    elseif fits(units, its_total) then
      let_in(owner, pickup, units, its_total, channel)
    elseif owner == self or may_have_subscriber(channel) then
      return false
    else
      -- A dead waiter would delay all waiters behind it.
      leave(owner)
    end
  end
  return true
end

-- Writes the counts and the key's time to live. Deletes the key if no lease is left.
local function close()
  local last = redis.call('ZRANGE', lock, -1, -1, 'WITHSCORES')[2]
  if not last then return end
  if tonumber(last) <= 0 then
    redis.call('DEL', lock)
  else
    redis.call('ZADD', lock, -total, '=of', -used, '=used')
    redis.call('PEXPIREAT', lock, last)
  end
end
