-- Shared: wakes the waiters of a lock that several owners share, on one node of a quorum. share.lua comes before.

-- Wakes the first live waiter if its units are free. If it is a reader, wakes the readers right behind it too. Leaves
-- all of them in the queue, because a script gives a quorum's lock only to its caller. Drops dead waiters on the way.
-- Returns whether it woke a waiter.
local function wake_first()
  local is_woken = false
  for _, owner in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
    local seen, _, units, _, channel = waiter(owner)
    local is_reader = units == '1'
    if not seen or math.abs(now - seen) > tonumber(life) then
      leave(owner)
    elseif not fits(units) or is_woken and not is_reader then
      return is_woken
    elseif not wake(owner, channel) then
      leave(owner)
    elseif is_reader then
      is_woken = true
    else
      return true
    end
  end
  return is_woken
end

