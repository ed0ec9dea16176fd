-- Releases a mutex in the cases that mutex_hand_over_by_message.lua leaves to this file. queue_next.lua and gap.lua come
-- before. KEYS, ARGV and reply as in mutex_hand_over_by_message.lua.
if ARGV[6] == '1' then
  local _, _, refused = ignore_wrong_type(leave, owner)
  if refused then return refused end
end
local function end_lease()
  -- Without waiters the mutex becomes free without a gap.
  local is_contended = ARGV[7] ~= '0' and redis.call('ZCARD', queue) > 0
  if is_contended and leave_free(lock, owner, ARGV[7], ARGV[8]) then
    -- That waiter asks at once, and takes the mutex when the gap ends.
    wake_head()
    return nil
  end
  local function reserve(fences) return next_fences(KEYS[2], fences, ARGV[9], server_time()) end
  return hand_over(lock, reserve)
end

if is_holder then
  give_back(KEYS[2], ARGV[2], ARGV[3])
  local ok, given, refused = ignore_wrong_type(end_lease)
  if refused then return refused end
  -- A companion is a key of another type, so there is no waiter to hand the lock to.
  if not ok then redis.call('DEL', lock) end
  return ok and given and 3 or 1
end
if value then return type(value) == 'table' and value or -1 end
if ARGV[6] == '1' then
  -- In a gap, this owner may be the only one that was woken. The head of the queue now asks in its place.
  local _, _, refused = ignore_wrong_type(wake_head)
  if refused then return refused end
end
return 0
