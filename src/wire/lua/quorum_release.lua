-- Releases a mutex on one node of a quorum, and wakes the first live waiter, whose turn it is then.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 owner  2 last fence used ('0' if none)  3 last fence of this node's reply to the acquire  4 first of that reply
--       (2 to 4 are '' if there are none to give back)  5 life of a waiter ms  6 '1' if PUBLISH counts all subscribers
--       7 '1' if the owner may itself be in the queue (a withdrawal)
-- Reply 1 released  3 released, and a waiter woken  0 the key is gone  -1 another owner holds it
-- Idempotent because it acts only while this owner holds the mutex, and ends that. A withdrawal also removes the owner
-- from the queue, and wakes a waiter: to be woken twice does no harm.
--
-- Most often nobody waits, so the value has no mark, and there are no fences to give back. This part stands before the
-- functions of the other files, because Redis defines a script's functions at each run, which takes longer than this
-- part.
if ARGV[2] == '' and ARGV[7] == '0' and redis.pcall('GETRANGE', KEYS[1], 0, 511) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return 1
end

-- include quorum_turn.lua
local lock, owner, is_withdrawal = KEYS[1], ARGV[1], ARGV[7] == '1'
queue, waiters, life, counts_subscribers = KEYS[3], KEYS[4], ARGV[5], ARGV[6]

local value = value_of(lock, redis.call)
local is_holder = is_held_by(value, owner)

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
