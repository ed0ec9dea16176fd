-- Releases a mutex: hands it to the first live waiter, or frees it. record.lua, fence.lua, value.lua, queue.lua and
-- gap.lua come before.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 owner  2 last fence used  3 last of its block (both '' if there are none to give back)  4 life of a waiter ms
--       5 '1' if PUBLISH counts all subscribers  6 '1' if the owner may itself be in the queue (a withdrawal)  7 gap ms
--       8 quantum ms, see gap.lua  9 fence memory ms
-- Reply 1 released  3 released and handed to a waiter  0 the key is gone  -1 another owner holds it
-- Idempotent because it acts only while this owner holds the lock, and ends that.
queue, waiters, life, counts_subscribers = KEYS[3], KEYS[4], ARGV[4], ARGV[5]
if ARGV[6] == '1' then
  local _, _, refused = ignore_wrong_type(leave, ARGV[1])
  if refused then return refused end
end
local function end_lease()
  -- Without waiters the mutex becomes free without a gap.
  local is_contended = ARGV[7] ~= '0' and redis.call('ZCARD', queue) > 0
  if is_contended and leave_free(KEYS[1], ARGV[1], ARGV[7], ARGV[8]) then
    -- That waiter asks at once, and takes the mutex when the gap ends.
    wake_head()
    return nil
  end
  local function reserve(fences) return next_fences(KEYS[2], fences, ARGV[9], server_time()) end
  return hand_over(KEYS[1], reserve)
end

local value = value_of(KEYS[1], redis.call)
if value == ARGV[1] or value == ARGV[1] .. MARK then
  give_back(KEYS[2], ARGV[2], ARGV[3])
  local ok, given, refused = ignore_wrong_type(end_lease)
  if refused then return refused end
  -- A companion is a key of another type, so there is no waiter to hand the lock to.
  if not ok then redis.call('DEL', KEYS[1]) end
  return ok and given and 3 or 1
end
if value then return -1 end
if ARGV[6] == '1' then
  -- In a gap, this owner may be the only one that was woken. The head of the queue now asks in its place.
  local _, _, refused = ignore_wrong_type(wake_head)
  if refused then return refused end
end
return 0
