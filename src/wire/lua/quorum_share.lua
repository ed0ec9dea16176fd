-- Shared: wakes the waiters of a lock that several owners share, on one node of a quorum. The functions at the end do for the
-- scripts that end an owner what those of the same names in share.lua and queue_next.lua do on one server.
-- include share.lua
-- include quorum_turn.lua

-- Wakes the first waiter that is awake if its units are free. If it is a reader, wakes the readers right behind it too.
-- Leaves all of them in the queue, because a script gives a quorum's lock only to its caller. If nobody holds the lock, it
-- is the first waiter's turn now, and the next one that was not woken may be told. Passes over waiters and drops them on the
-- way. Returns whether it woke a waiter. With `kept`, units are free after that number of ms, and so is the lock.
local function wake_first(kept)
  local whose, length = end_lapsed_turn(), nil
  local is_woken, silent, place = false, 0, -1
  for _, owner in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
    local seen, pickup, units, _, channel = waiter(owner)
    local is_reader = units == '1'
    local state = state_of(seen, pickup, channel)
    place = place + 1
    if state == 'silent' then
      silent = silent + 1
      if pickup == '0' and not is_woken then wake(owner, channel) end
      if silent == MOST_PASSED then return is_woken end
    elseif state == 'awake' and is_woken and not is_reader then
      tell_next(place, length)
      return true
    elseif state == 'awake' and not (kept or fits(units, ALL)) then
      return is_woken
    elseif state == 'gone' or not wake(owner, channel) then
      leave(owner)
      place = place - 1
    else
      if not is_woken and (kept or used == 0) then length = give_turn(whose, owner, kept) end
      is_woken = true
      if not is_reader then
        tell_next(place + 1, length)
        return true
      end
    end
  end
  -- Nobody who waits is awake. The turn may have been that of the owner that ends.
  if not is_woken and used == 0 then end_turn() end
  return is_woken
end

-- Does not look at the queue, because a key of another type must not keep a lock from its end.
local open = open_lock

-- The units are free by then, so an error of the queue would mislead the caller.
local function advance()
  local _, is_woken = ignore_wrong_type(wake_first)
  given = is_woken
end

-- Wakes the first live waiter of a lock that is kept for another `kept` ms. Its turn begins when the lock is free.
local function wake_head(kept)
  if ARGV[3] == '0' then return begin_turn(kept) end
  now = now_ms()
  return wake_first(kept)
end
