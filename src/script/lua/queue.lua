-- Shared: the queue of the processes that wait for a lock. value.lua comes before.
--
-- `queue` is a sorted set of owners by ticket. `waiters` is a hash of owner -> '<ms when last seen> <pickup window ms>
-- <units>/<units of the whole> <channel>': handed over, the lock waits for `pickup` ms for the owner to come and take
-- so much of it.
-- A channel of '' belongs to a process that hears no messages and polls often instead. Fields that begin with '=' belong to
-- no owner.

-- What waiters have in common: `life` is how long one is believed without a sign of it, and `heard` is '1'
-- where a PUBLISH that reached nobody proves that nobody is there.
local queue, waiters, life, heard

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Tickets count up from 1, and those of the owners in front of all others from this number, up to zero.
local FRONT = -1000000000

-- Puts `owner` at the end of the queue, or `in_front`: before all others, but behind those that came there earlier. An
-- owner that is there already keeps its place, and is noted to wait still.
local function join(owner, pickup, units, channel, in_front)
  -- First, so that a queue of another type ends this before anything is written.
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

-- What is known of a waiter: when it was last seen, its pickup, its units, those of the whole, its channel; nothing where
-- it is unknown.
local function waiter(owner)
  return string.match(redis.call('HGET', waiters, owner) or '', '^(%d+) (%d+) (%d+)/(%d+) (.*)$')
end

-- Wakes a waiter. False where nobody is there to be woken.
local function wake(owner, channel)
  if channel == '' then return true end
  -- Refused by an access list: whether it heard is unknown, and it polls.
  local reached = redis.pcall('PUBLISH', channel, owner)
  return type(reached) == 'table' or reached > 0 or heard ~= '1'
end

-- A field of `waiters`. It is there if the last owner that left the queue for its turn came from the front, and went past
-- waiters that did not.
local FRONT_HAD = '=front'

-- Returns the owner whose turn it is, and whether it goes past waiters that did not come to the front. Owners at the front
-- and the others take turns: else two sets that come to the front again and again would starve the others.
local function next_in_turn()
  local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
  if not first[1] or tonumber(first[2]) > 0 then return first[1], false end
  local other = redis.call('ZRANGE', queue, '(0', '+inf', 'BYSCORE', 'LIMIT', 0, 1)[1]
  if other and redis.call('HGET', waiters, FRONT_HAD) then return other, false end
  return first[1], other ~= nil
end

-- Notes for the next turn whether this one went past waiters that did not come to the front. By pcall: the owner has left
-- the queue, and a refusal must not keep the lock from it.
local function note_turn(is_past_others)
  if is_past_others then
    redis.pcall('HSET', waiters, FRONT_HAD, '1')
    redis.pcall('PEXPIRE', waiters, life)
  else
    redis.pcall('HDEL', waiters, FRONT_HAD)
  end
end

-- Takes the next waiter that is alive out of the queue and wakes it; stops at `self`, which needs no waking.
-- Returns it and its pickup window ms.
-- Crashed ones are dropped on the way: not seen for `believed` ms, or nobody listens on their channel.
local function next_waiter(self, believed)
  local now = now_ms()
  while true do
    local head, is_past_others = next_in_turn()
    if not head then return nil end
    local seen, pickup, _, _, channel = waiter(head)
    leave(head)
    local is_self = head == self
    if is_self or seen and math.abs(now - seen) <= tonumber(believed) and wake(head, channel) then
      note_turn(is_past_others)
      if is_self then return head end
      return head, pickup
    end
  end
end

-- Wakes the first waiter that is alive, and leaves it in the queue. Crashed ones are dropped on the way.
local function wake_head()
  local now = now_ms()
  while true do
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not head then return end
    local seen, _, _, _, channel = waiter(head)
    if seen and math.abs(now - seen) <= tonumber(life) and wake(head, channel) then return end
    leave(head)
  end
end

-- Makes `owner` the holder of a mutex for `ttl` ms, marked where others wait behind it. False where memory
-- forbids it.
local function give(lock, owner, ttl)
  local value = owner
  if redis.call('ZCARD', queue) > 0 then value = owner .. MARK end
  return not redis.pcall('SET', lock, value, 'PX', ttl).err
end

-- Hands a mutex to the first waiter, for its pickup window; frees it where there is none. Returns who has it now.
local function hand_over(lock)
  local head, pickup = next_waiter(nil, life)
  if head and give(lock, head, pickup) then return head end
  redis.call('DEL', lock)
end

-- Calls `act`. Returns true and what it returned; or false where a companion is of another type, which is somebody
-- else's and keeps no lock; or false, nothing and any other error, to be replied: raised again it would lose its code.
local function past_strangers(act, ...)
  local ok, result = pcall(act, ...)
  if ok then return true, result end
  local text = type(result) == 'table' and result.err or result
  if string.find(text, 'WRONGTYPE', 1, true) then return false end
  return false, nil, redis.error_reply(text)
end

-- Takes back the fences after `used`, unless somebody has gone further than `last` since.
local function give_back(fence, used, last)
  if used ~= '' and redis.pcall('GET', fence) == last then
    redis.pcall('SET', fence, used, 'KEEPTTL')
  end
end

