-- Does the same as force_release.lua on one node of a quorum. KEYS, ARGV and reply as in force_release.lua.
--
-- A script gives a quorum's lock only to its caller. So the waiters are woken, and do not get the lock. The owner has lost
-- the lock by then, so an error of the queue would mislead the caller.
-- include quorum_share.lua
local open = open_lock

local function hand_over()
  redis.call('DEL', lock)
  ignore_wrong_type(begin_turn)
end

local function advance(_, _, has_ended)
  if has_ended then ignore_wrong_type(wake_first) end
end
-- include force_release.lua
