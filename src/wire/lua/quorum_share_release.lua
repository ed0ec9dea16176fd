-- Releases a reader-writer lock on one node of a quorum, and wakes the first live waiters. If the lock is free then, it is
-- the first waiter's turn.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 to 7 as in quorum_release.lua (a reader has no fences to give back)
--       8 units: 1 for a reader, ALL for a writer
-- Reply 1 released  3 released, and at least one waiter woken  0 the owner held none
-- Idempotent because it ends this owner's lease and no other. A withdrawal also removes the owner from the queue, and
-- wakes waiters: to be woken twice does no harm.
-- include quorum_share.lua
lock, queue, waiters, life, counts_subscribers = KEYS[1], KEYS[3], KEYS[4], ARGV[5], ARGV[6]
local owner, is_withdrawal = ARGV[1], ARGV[7] == '1'
local refused = open_lock()
if refused then return refused end
-- Without a lease, no key says how many units the lock has.
if total == 0 then total = ALL end

local released = drop(ARGV[8] .. ' ' .. owner)
if released then give_back_at_node(KEYS[2], ARGV[2], ARGV[3], ARGV[4]) end
if released or has_expired then
  close()
elseif not is_withdrawal then
  return 0
end

local function update_queue()
  if is_withdrawal then leave(owner) end
  -- If the units were free before, this owner may be the only one that was woken. The head of the queue now asks in its
  -- place.
  local is_woken = wake_first()
  -- The turn may have been this owner's.
  if is_withdrawal and not is_woken then end_turn() end
  return is_woken
end

local ok, is_woken, failure = ignore_wrong_type(update_queue)
-- The units are released, so an error of the queue would mislead the caller.
if released then return ok and is_woken and 3 or 1 end
return failure or 0
