-- Shared: wakes the waiters of a lock that several owners share, on one node of a quorum. share.lua and quorum_turn.lua
-- come before.

-- Wakes the first waiter that is awake if its units are free. If it is a reader, wakes the readers right behind it too. Leaves
-- all of them in the queue, because a script gives a quorum's lock only to its caller. If nobody holds the lock, it is
-- the first waiter's turn now. Passes over waiters and drops them on the way. Returns whether it woke a waiter. With `kept`, units are
-- free after that number of ms, and so is the lock.
local function wake_first(kept)
  local is_woken, silent = false, 0
  for _, owner in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
    local seen, pickup, units, _, channel = waiter(owner)
    local is_reader = units == '1'
    local state = state_of(seen, pickup, channel)
    if state == 'gone' then
      leave(owner)
    elseif state == 'silent' then
      silent = silent + 1
      if silent == MOST_PASSED then return is_woken end
    elseif not (kept or fits(units, ALL)) or is_woken and not is_reader then
      return is_woken
    elseif not wake(owner, channel) then
      leave(owner)
    else
      if not is_woken and (kept or used == 0) then give_turn(owner, pickup, channel, kept) end
      is_woken = true
      if not is_reader then return true end
    end
  end
  return is_woken
end

