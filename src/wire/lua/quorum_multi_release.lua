-- Releases several mutexes on one node of a quorum, and wakes the first live waiter of each, whose turn it is then.
--
-- KEYS  for each: lock, fence, queue, waiters
-- ARGV  1 owner  2 life of a waiter ms  3 '1' if PUBLISH counts all subscribers
-- Reply 1 released  3 released, and at least one waiter woken  0 one of the keys was gone
--       -1 another owner holds one of them
-- Idempotent because it acts only on the names that this owner holds or waits for, and ends that.
-- include quorum_turn.lua
local owner = ARGV[1]
life, counts_subscribers = ARGV[2], ARGV[3]

-- Returns 1 if the owner held the mutex, 0 if the key is gone, and -1 if another owner holds it.
local function release(lock)
  local value = value_of(lock, redis.call)
  if not value then return 0 end
  if not is_held_by(value, owner) then return -1 end
  return redis.call('DEL', lock)
end

-- Takes the owner out of the queue. Returns whether a waiter was woken.
local function update_queue(released)
  local was_waiting = redis.call('ZSCORE', queue, owner)
  leave(owner)
  -- If the key was gone, this owner may be the only one that was woken. The head of the queue now asks in its place.
  if released == 1 or released == 0 and was_waiting then
    return begin_turn()
  end
end

local reply, is_woken, failure = 1, false, nil
for i = 1, #KEYS, 4 do
  queue, waiters = KEYS[i + 2], KEYS[i + 3]
  -- A key of another type is not a lock. It must not keep the other names from their release.
  local ok, released, refused = ignore_wrong_type(release, KEYS[i])
  if refused then return refused end
  if not ok then released = -1 end
  reply = math.min(reply, released)
  local _, woken, not_updated = ignore_wrong_type(update_queue, released)
  is_woken = is_woken or woken
  failure = failure or not_updated
end
-- After a release of all names, an error of a queue would mislead the caller.
if reply == 1 then return is_woken and 3 or 1 end
return failure or reply
