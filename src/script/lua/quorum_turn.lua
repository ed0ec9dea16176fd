-- Shared: the turn of a waiter to ask for a lock of a quorum that is free, and the return of fences at one node.
-- queue_next.lua comes before.
--
-- A release wakes the first waiter, but does not give it the lock: the waiter could get it from too few nodes. Without a
-- turn, a process that asks by chance would often come first, above all the one that has just released. So for a short
-- time this node grants the lock to that waiter only.
--
-- The first waiters of two nodes may differ: A at node 1, and B at node 2. Then it is A's turn at node 1 and B's turn at
-- node 2, and at first neither may get a majority. They do not block each other for ever:
-- * A turn ends by time, after LONGEST_TURN. Then the node grants the free lock to any caller.
-- * A waiter that got too few nodes withdraws there. The withdrawal begins the turn of the next waiter, which may be the
--   one that has its turn at the other node.
-- * A node never lengthens the turn of a waiter, however often that waiter is woken.
--
-- A turn is a field of `waiters`: '<ms when it ends> <owner>'.
local TURN = '=turn'

-- The longest turn, ms. If the waiter hangs, the others lose that much time.
local LONGEST_TURN = 100

-- Returns how many ms a turn still lasts, and its owner. Returns nil if it is nobody's turn.
local function current_turn()
  local turn = redis.call('HGET', waiters, TURN)
  if not turn then return nil end
  local ends, who = string.match(turn, '^(%d+) (.*)$')
  if not ends then return nil end
  local left = ends - now_ms()
  -- If the clock was set back, a turn would last too long. The turn after a min_hold has not begun before.
  if left > 0 and left <= LONGEST_TURN then return left, who end
end

-- Returns whether a caller may use the turn of `who`. A process that was outvoted has the turn of its former owner, by
-- its channel. The readers of a process do not have the turn of its writer, so the units must be equal too.
local function may_use_turn(who, owner, channel, units)
  if who == owner then return true end
  local _, _, its_units, _, its_channel = waiter(who)
  return its_channel == channel and its_units == units and channel ~= ''
end

-- Returns how many ms the turn of another process still lasts, and its owner. Returns nil if it is nobody else's turn.
local function turn_of_another(owner, channel, units)
  local left, who = current_turn()
  if left and not may_use_turn(who, owner, channel, units) then return left, who end
end

local function end_turn()
  redis.call('HDEL', waiters, TURN)
end

-- Begins the turn of `head`, which was woken; of nobody if it is nil. A turn that has begun is not made longer. A waiter
-- that cannot be woken, because it has no channel, gets none. With `kept`, the turn begins after that number of ms.
local function give_turn(head, pickup, channel, kept)
  local turn = redis.call('HGET', waiters, TURN)
  if head and channel ~= '' then
    if not (turn and string.sub(turn, -#head) == head) then
      local ends = now_ms() + (kept or 0) + math.min(tonumber(pickup), LONGEST_TURN)
      -- By pcall, because the waiter is woken in any case.
      redis.pcall('HSET', waiters, TURN, string.format('%.0f %s', ends, head))
    end
  elseif turn then
    end_turn()
  end
end

-- Wakes the first live waiter, whose turn it is now, or after `kept` ms. Returns whether there is one.
local function begin_turn(kept)
  local head, pickup, channel = wake_head()
  give_turn(head, pickup, channel, kept)
  return head ~= nil
end

-- Gives back the fences after `used`, unless `used` is '' or another grant has raised the record above `last`. The client
-- knows the first fence that this node answered, so the record stays there at least. If the client used larger fences than
-- this node reserved, there are none to give back. After a raise the record is larger than the reply, and give_back leaves
-- it alone. The end of a raise must not be `last`: a late copy of the raise would make it the record again, after another
-- owner's grant.
local function give_back_at_node(fence, used, last, first)
  local kept = used ~= '' and math.max(tonumber(used), tonumber(first))
  if kept and kept < tonumber(last) then give_back(fence, string.format('%.0f', kept), last) end
end

