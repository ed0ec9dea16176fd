-- Does the same as keep.lua on one node of a quorum. KEYS, ARGV and reply as in keep.lua.
-- include quorum_share.lua

-- Wakes the first live waiter. Its turn begins after `kept` ms, when the lock is free.
local function wake_head(kept)
  if ARGV[3] == '0' then return begin_turn(kept) end
  now = now_ms()
  return wake_first(kept)
end
-- include keep.lua
