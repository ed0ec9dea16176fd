-- Shared: the leases that several owners have of one lock, which is divided into units. queue.lua comes before.
--
-- `lock` is a sorted set of '<units> <owner>' by the ms at which the lease ends. Beside them stand two members
-- that count, with scores below zero: '=of' has minus the units that there are, '=used' minus those in use.
-- A reader-writer lock has ALL units: a writer takes them all, a reader one.

local ALL = 4294967295

-- Set by `open`: how the lock stands, and what happened to it in this script.
local lock, of, used, now
-- Whether leases have run out, and whether a writer's has ended.
local lapsed, wrote = false, false
-- Whether anything was given to a waiter.
local given = false

-- Ends a lease. False where there is none.
local function drop(member)
  if redis.call('ZREM', lock, member) == 0 then return false end
  local units = tonumber(string.match(member, '^%d+'))
  used = used - units
  wrote = wrote or units == ALL
  return true
end

-- Reads the lock, and ends what has run out. What can fail, because a key is of another type or who asks may not read
-- the queue, fails here; returns an error where the lock's is somebody's own.
local function open()
  redis.call('ZRANGE', queue, 0, 0)
  redis.call('HLEN', waiters)
  now = now_ms()
  local whole = redis.call('ZSCORE', lock, '=of')
  if not whole and redis.call('EXISTS', lock) == 1 then
    return redis.error_reply('WRONGTYPE a sorted set that is no lock has this name')
  end
  of = -(whole or 0)
  used = -(redis.call('ZSCORE', lock, '=used') or 0)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', lock, 0, now)) do
    lapsed = drop(member)
  end
end

local function fits(units)
  return used + units <= of
end

-- Gives `owner` a lease of so many units for `ttl` ms, or raises the one it has to that. At once with what counts, so that
-- it is a lease like any other even where a later command is refused; whoever asked for it ends it then.
local function hold(owner, units, ttl)
  local member = units .. ' ' .. owner
  local ends = redis.call('ZSCORE', lock, member)
  if not ends then used = used + units end
  if not ends or tonumber(ends) < now + ttl then
    redis.call('ZADD', lock, string.format('%.0f', now + ttl), member, -of, '=of', -used, '=used')
  end
end

-- Whether anybody listens on a channel.
local function is_there(channel)
  if channel == '' or heard ~= '1' then return true end
  local count = redis.pcall('PUBSUB', 'NUMSUB', channel)
  return count.err ~= nil or count[2] > 0
end

-- Gives what is free to those who wait, for their pickup windows, and wakes them: after a writer all the readers
-- together, else first come, first served. `self` is given `lease`, and needs no waking.
-- Crashed waiters are dropped on the way, as in `next_waiter`.
local function advance(self, lease)
  -- A lease that ran out may have been a waiter's that hangs, and others may hang with it.
  local believed = lapsed and life / 2 or tonumber(life)
  local function let_in(owner, seen, pickup, units, channel)
    leave(owner)
    if owner == self then return hold(owner, units, lease) end
    if math.abs(now - seen) > believed or not wake(owner, channel) then return end
    hold(owner, units, pickup)
    given = true
  end
  if wrote then
    for _, owner in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
      local seen, pickup, units, _, channel = waiter(owner)
      if units == '1' then let_in(owner, seen, pickup, units, channel) end
    end
  end
  while true do
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not head then return end
    local seen, pickup, units, whole, channel = waiter(head)
    -- Unknown, or of those who divide the lock otherwise: its own next poll says what becomes of that.
    if not seen or tonumber(whole) ~= of then
      leave(head)
    elseif fits(units) then
      let_in(head, seen, pickup, units, channel)
    elseif head ~= self and (math.abs(now - seen) > believed or not is_there(channel)) then
      -- It would keep back everybody behind it.
      leave(head)
    else
      return
    end
  end
end

-- Writes what `open` has read and the rest has changed.
local function close()
  local last = redis.call('ZRANGE', lock, -1, -1, 'WITHSCORES')[2]
  if not last then return end
  if tonumber(last) <= 0 then
    redis.call('DEL', lock)
  else
    redis.call('ZADD', lock, -of, '=of', -used, '=used')
    redis.call('PEXPIREAT', lock, last)
  end
end

