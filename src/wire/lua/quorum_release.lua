-- Releases a mutex on one node of a quorum that may have waiters, has fences to give back, or is not held by the owner.
-- KEYS, ARGV and reply as in quorum_release_plain.lua.
local lock, owner, is_withdrawal = KEYS[1], ARGV[1], ARGV[7] == '1'
queue, waiters, life, counts_subscribers = KEYS[3], KEYS[4], ARGV[5], ARGV[6]

local value = value_of(lock, redis.call)
local is_holder = value == owner or value == owner .. MARK

if is_holder then
  give_back_at_node(KEYS[2], ARGV[2], ARGV[3], ARGV[4])
  redis.call('DEL', lock)
  -- Without the mark nobody waits.
  if value == owner and not is_withdrawal then return 1 end
elseif not is_withdrawal then
  return value and -1 or 0
end

-- Returns whether a waiter was woken.
local function update_queue()
  if is_withdrawal then leave(owner) end
  if value and not is_holder then return false end
  -- If the key was gone before, this owner may be the only one that was woken. The head of the queue now asks in its
  -- place.
  return begin_turn()
end

local ok, is_woken, refused = ignore_wrong_type(update_queue)
-- The mutex is released, so an error of its queue would mislead the caller.
if is_holder then return ok and is_woken and 3 or 1 end
if refused then return refused end
return value and -1 or 0
