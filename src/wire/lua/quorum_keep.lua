-- Shared: the part of keep.lua for one node of a quorum. share.lua, quorum_turn.lua and quorum_share.lua come before.

-- Wakes the first live waiter. Its turn begins after `kept` ms, when the lock is free.
local function wake_head(kept)
  if ARGV[3] == '0' then return begin_turn(kept) end
  now = now_ms()
  return wake_first(kept)
end
