-- Shared: the turn of a waiter to ask for a lock of a quorum that is free. queue.lua comes before.
--
-- A release wakes the first waiter, but does not give it the lock: the waiter could get it from too few nodes. Without a
-- turn, a process that asks by chance would often come first, above all the one that has just released. So for a short
-- time this node grants the lock to that waiter only.
-- A turn is a field of `waiters`: '<ms when it ends> <owner>'.
local TURN = '=turn'

-- The longest turn, ms. If the waiter hangs, the others lose that much time.
local LONGEST_TURN = 100

-- Returns how many ms the turn of another process still lasts, and its owner. Returns nil if it is nobody else's turn. A
-- process that was outvoted has the turn of its former owner, by its channel.
local function turn_of_another(owner, channel)
  local turn = redis.call('HGET', waiters, TURN)
  if not turn then return nil end
  local ends, who = string.match(turn, '^(%d+) (.*)$')
  if not ends or who == owner then return nil end
  local _, _, _, _, its_channel = waiter(who)
  if its_channel == channel and channel ~= '' then return nil end
  local left = ends - now_ms()
  -- If the clock was set back, a turn would last too long.
  if left > 0 and left <= LONGEST_TURN then return left, who end
end

local function end_turn()
  redis.call('HDEL', waiters, TURN)
end

-- Wakes the first live waiter, whose turn it is now. A turn that has begun is not made longer. A waiter that cannot be
-- woken, because it has no channel, gets none. Returns whether there is a waiter.
local function begin_turn()
  local head, pickup, channel = wake_head()
  local turn = redis.call('HGET', waiters, TURN)
  if head and channel ~= '' then
    if not (turn and string.sub(turn, -#head) == head) then
      local ends = now_ms() + math.min(tonumber(pickup), LONGEST_TURN)
      -- By pcall, because the waiter is woken in any case.
      redis.pcall('HSET', waiters, TURN, string.format('%.0f %s', ends, head))
    end
  elseif turn then
    end_turn()
  end
  return head ~= nil
end
