-- Shared: the turn of a waiter to ask for a lock of a quorum that is free.
--
-- A release wakes the first waiter, but does not give it the lock: the waiter could get it from too few nodes. Without a
-- turn, a process that asks by chance would often come first, above all the one that has just released. So for a short
-- time this node grants the lock to that waiter only.
--
-- | the turn of A | this node |
-- | --- | --- |
-- | begins | wakes A. Unless A has just asked, tells the next live waiter how long the turn is, so that it asks when the turn ends. |
-- | A asks | grants A the free lock. That ends the turn. |
-- | A is woken again | does not make the turn longer |
-- | another process asks | refuses it |
-- | lapses: A has not asked when the turn ends | does nothing until another process asks, or a waiter withdraws. Then it passes A over, and begins the turn of the next live waiter. If there is none, the caller gets the lock. |
-- | is over, and a turn begins behind A | wakes A too: A may be well, and may have missed the message |
-- | A asks after that | no longer passes A over. A has kept its place, and its next turn lasts twice as long, at most its window. |
--
-- So a waiter that hangs costs the others one turn, and one that is only slow gets its turn in the end.
--
-- The first waiters of two nodes may differ: A at node 1, and B at node 2. Then it is A's turn at node 1 and B's turn at
-- node 2, and at first neither may get a majority. They do not block each other for ever, because each turn lapses. And a
-- waiter that got too few nodes withdraws there. The withdrawal begins the turn of the next waiter, which may be the one
-- that has its turn at the other node.
--
-- A turn is a field of `waiters`: '<ms when it ends> <its length, ms> <owner>'. The record of a waiter whose turn has
-- lapsed has the length of its next turn in place of the number of fences, because no quorum grants by message. Until the
-- waiter asks again, its pickup window there is 0, so it counts as silent.
-- include queue_next.lua
local TURN = '=turn'

-- The length of a waiter's first turn, ms.
local FIRST_TURN = 100

-- A waiter that asked less than this number of ms ago is not likely to hang. So its turn costs no message to the next
-- waiter.
local JUST_ASKED = 20

-- Returns how many ms a turn still lasts, its owner, and its length, ms. The first number is 0 or less if the turn has
-- lapsed. It is larger than the length if the turn has not begun, or if the clock was set back. Returns nil if there is
-- no turn.
local function stored_turn()
  local turn = redis.call('HGET', waiters, TURN)
  local ends, length, who = string.match(turn or '', '^(%d+) (%d+) (.*)$')
  if who then return ends - now_ms(), who, tonumber(length) end
end

-- Returns whether a caller may use the turn of `who`. A process that was outvoted has the turn of its former owner, by
-- its channel. The readers of a process do not have the turn of its writer, so the units must be equal too.
local function may_use_turn(who, owner, channel, units)
  if who == owner then return true end
  local _, _, its_units, _, its_channel = waiter(who)
  return its_channel == channel and its_units == units and channel ~= ''
end

local function end_turn()
  redis.call('HDEL', waiters, TURN)
end

-- Returns the owner of the turn that lasts or has not begun. If the turn has lapsed, ends it, and passes its waiter over
-- until that asks again.
local function end_lapsed_turn()
  local left, who, length = stored_turn()
  if not left or left > 0 then return who end
  local seen, pickup, units, its_total, channel = waiter(who)
  if seen and pickup ~= '0' then
    local longer = math.min(2 * length, tonumber(pickup))
    -- By pcall: without that write, it only gets one more turn.
    redis.pcall('HSET', waiters, who, string.format('%s 0 %s/%s %s %.0f', seen, units, its_total, channel, longer))
  end
  end_turn()
end

-- Begins the turn of `head`, which was woken; of nobody if it is nil. A turn of `whose` that has begun is not made longer.
-- A waiter that cannot be woken, because it has no channel, gets none. With `kept`, the turn begins after that number of
-- ms. If the turn begins now, and `head` may hang, returns the length of the turn.
local function give_turn(whose, head, kept)
  if whose and whose == head then return end
  local seen, pickup, _, _, channel, longer = waiter(head or '')
  if not seen or channel == '' then
    if whose then end_turn() end
    return
  end
  local now, length = now_ms(), math.min(tonumber(pickup), tonumber(longer) or FIRST_TURN)
  -- By pcall, because the waiter is woken in any case.
  redis.pcall('HSET', waiters, TURN, string.format('%.0f %.0f %s', now + (kept or 0) + length, length, head))
  if not kept and now - seen >= JUST_ASKED then return length end
end

-- Tells the first live waiter at `place` in the queue, or behind it, that the turn before its own lasts `length` ms.
-- Without a length, tells nobody.
local function tell_next(place, length)
  while length and place < MOST_PASSED do
    local owner = redis.call('ZRANGE', queue, place, place)[1]
    if not owner then return end
    local seen, pickup, _, _, channel = waiter(owner)
    local is_awake = state_of(seen, pickup, channel) == 'awake'
    if is_awake and wake(string.format('%s %.0f', owner, length), channel) then return end
    place = place + 1
  end
end

-- Wakes the first live waiter, whose turn it is now, or after `kept` ms. Returns whether there is one.
local function begin_turn(kept)
  local whose = end_lapsed_turn()
  local head, place = wake_head()
  local length = give_turn(whose, head, kept)
  if head then tell_next(place + 1, length) end
  return head ~= nil
end

-- Returns how many ms the turn of another process still lasts, and its owner. Returns nil if it is nobody else's turn. If
-- the turn of another process has lapsed, first calls `begin`, which begins the turn of the next live waiter.
local function turn_of_another(owner, channel, units, begin)
  local left, who, length = stored_turn()
  if not left or left > length or may_use_turn(who, owner, channel, units) then return nil end
  if left > 0 then return left, who end
  begin()
  left, who, length = stored_turn()
  if left and left <= length and not may_use_turn(who, owner, channel, units) then return left, who end
end

-- Puts the caller into the queue, as `join` does. The length of its next turn stays in its record.
local function join_for_turn(owner, pickup, units, channel)
  local _, _, _, _, _, longer = waiter(owner)
  join(owner, pickup, units, longer and longer ~= '' and channel .. ' ' .. longer or channel)
end

-- What `hand_over` in queue_next.lua is on one server: frees a mutex, and wakes its first live waiter, whose turn it is then.
-- Returns whether there is one. The mutex is free by then, so an error of its queue would mislead the caller.
local function hand_over(lock)
  redis.call('DEL', lock)
  local _, is_woken = ignore_wrong_type(begin_turn)
  return is_woken
end
