-- Shared: wakes the waiters of a lock that several owners share, on one node of a quorum.
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
  return is_woken
end
