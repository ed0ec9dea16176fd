-- Shared: the queue of the processes that wait for a lock. value.lua comes before.
--
-- `queue` is a sorted set of owners, ordered by ticket.
-- `waiters` is a hash from owner to '<ms when last seen> <pickup window ms> <units>/<units of the lock> <channel>'.
-- After a hand-over, the lock waits for the pickup window until the owner takes that number of units.
-- The channel '' belongs to a process without a subscription, which polls often instead. A field that begins with '='
-- belongs to no owner.

-- `life` is how many ms a waiter counts as alive after it was last seen. `counts_subscribers` is '1' if a PUBLISH that
-- reached no subscriber proves that the process is gone.
local queue, waiters, life, counts_subscribers

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The first ticket of owners at the front of the queue; their tickets end below zero. Other tickets count up from 1.
local FRONT = -1000000000

-- Puts `owner` at the end of the queue. With `in_front` it comes before all others, but behind earlier ones at the
-- front. An owner in the queue keeps its place, unless it now comes to the front. Its record is written anew.
local function join(owner, pickup, units, channel, in_front)
  -- ZSCORE comes first, so that a queue of another type ends the script before it writes anything.
  local ticket = redis.call('ZSCORE', queue, owner)
  redis.call('HSET', waiters, owner, string.format('%.0f %s %s %s', now_ms(), pickup, units, channel))
  redis.call('PEXPIRE', waiters, life)
  if in_front and not (ticket and tonumber(ticket) < 0) then
    local last = redis.call('ZRANGE', queue, '(0', '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
    redis.call('ZADD', queue, (last or FRONT) + 1, owner)
  elseif not ticket then
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0
    redis.call('ZADD', queue, math.max(last, 0) + 1, owner)
  end
  redis.call('PEXPIRE', queue, life)
end

local function leave(owner)
  redis.call('ZREM', queue, owner)
  redis.call('HDEL', waiters, owner)
end

-- Returns the record of a waiter: when it was last seen, its pickup window, its units, the units of the lock, its
-- channel. Returns nil if there is no record.
local function waiter(owner)
  return string.match(redis.call('HGET', waiters, owner) or '', '^(%d+) (%d+) (%d+)/(%d+) (.*)$')
end

-- Wakes a waiter by a message on its channel. Returns false if its process is known to be gone.
local function wake(owner, channel)
  if channel == '' then return true end
  -- If an access list forbids the PUBLISH, the waiter counts as alive: it polls.
  local reached = redis.pcall('PUBLISH', channel, owner)
  return type(reached) == 'table' or reached > 0 or counts_subscribers ~= '1'
end

-- A field of `waiters`. It exists if the last owner that got its turn came from the front of the queue, before waiters
-- that were not at the front.
local FRONT_HAD = '=front'

-- Returns the owner that is next, and whether it goes before waiters that are not at the front. Owners at the front and
-- the others take turns. Otherwise two sets that come to the front again and again would starve the others.
local function next_in_turn()
  local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
  if not first[1] or tonumber(first[2]) > 0 then return first[1], false end
  local other = redis.call('ZRANGE', queue, '(0', '+inf', 'BYSCORE', 'LIMIT', 0, 1)[1]
  if other and redis.call('HGET', waiters, FRONT_HAD) then return other, false end
  return first[1], other ~= nil
end

-- Notes for the next turn whether this one went before waiters that are not at the front. By pcall: the owner has left
-- the queue, and a rejected write must not keep the lock from it.
local function note_turn(is_past_others)
  if is_past_others then
    redis.pcall('HSET', waiters, FRONT_HAD, '1')
    redis.pcall('PEXPIRE', waiters, life)
  else
    redis.pcall('HDEL', waiters, FRONT_HAD)
  end
end

-- Takes the next live waiter out of the queue and wakes it. Stops at `self`, which needs no waking. Returns the waiter
-- and its pickup window ms. On the way it drops waiters that were last seen more than `max_silence` ms ago, or whose
-- channel has no subscriber.
local function next_waiter(self, max_silence)
  local now = now_ms()
  while true do
    local head, is_past_others = next_in_turn()
    if not head then return nil end
    local seen, pickup, _, _, channel = waiter(head)
    leave(head)
    local is_self = head == self
    if is_self or seen and math.abs(now - seen) <= tonumber(max_silence) and wake(head, channel) then
      note_turn(is_past_others)
      if is_self then return head end
      return head, pickup
    end
  end
end

-- Wakes the first live waiter, and leaves it in the queue. Drops dead waiters on the way. Returns the waiter, its
-- pickup window ms and its channel.
local function wake_head()
  local now = now_ms()
  while true do
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not head then return end
    local seen, pickup, _, _, channel = waiter(head)
    if seen and math.abs(now - seen) <= tonumber(life) and wake(head, channel) then return head, pickup, channel end
    leave(head)
  end
end

-- Makes `owner` the holder of a mutex for `ttl` ms, and marks the value if others wait. Returns an error if the server
-- refuses the write.
local function give(lock, owner, ttl)
  local value = owner
  if redis.call('ZCARD', queue) > 0 then value = owner .. MARK end
  local set = redis.pcall('SET', lock, value, 'PX', ttl)
  return set.err and set
end

-- Hands a mutex to the first live waiter, for its pickup window. Frees the mutex if there is none. Returns the new
-- holder.
local function hand_over(lock)
  local head, pickup = next_waiter(nil, life)
  if head and not give(lock, head, pickup) then return head end
  redis.call('DEL', lock)
end

-- Calls `act`. Returns true and the result of `act`. Returns false if a key had another type than a lock's: such a key
-- is not ours, and must not keep a lock from its end. After any other error, returns false, nil and the error as a
-- reply, because raising it again would lose its code.
local function ignore_wrong_type(act, ...)
  local ok, result = pcall(act, ...)
  if ok then return true, result end
  local text = type(result) == 'table' and result.err or result
  if string.find(text, 'WRONGTYPE', 1, true) then return false end
  return false, nil, redis.error_reply(text)
end

-- Gives back the fences after `used`, unless another grant has raised the record above `last`.
local function give_back(fence, used, last)
  if used ~= '' and redis.pcall('GET', fence) == last then
    redis.pcall('SET', fence, used, 'KEEPTTL')
  end
end

