-- Ends one owner of a mutex, and asks for the mutex under a new owner of the same process: at the end of a quantum, or
-- if the old lease cannot serve the next thread. If no other process waits, the new owner gets the mutex. Otherwise the
-- mutex is handed over, and the new owner joins the queue.
-- record.lua, fence.lua, value.lua, queue*.lua and gap.lua come before, mutex_acquire_held.lua and
-- mutex_acquire.lua after it.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 to 9 as in mutex_acquire_free.lua (5 is 'poll')  10 the owner that ends  11 last fence used  12 last of its block
--       (both '' if there are none to give back)  13 gap ms  14 quantum ms, see gap.lua
-- Reply as in mutex_acquire_free.lua. If this script has handed the mutex over, or left it free in a gap, 1 follows the
--       holder. The holder in a gap is the owner that ended.
-- Idempotent because the new owner replaces the old one: a repeat finds the new owner as holder or in the queue.
queue, waiters, life, counts_subscribers = KEYS[3], KEYS[4], ARGV[8], ARGV[9]
local held = value_of(KEYS[1], redis.call)
if held == ARGV[10] or held == ARGV[10] .. MARK then
  give_back(KEYS[2], ARGV[11], ARGV[12])
  if leave_free(KEYS[1], ARGV[10], ARGV[13], ARGV[14]) then
    -- In the queue, this process asks again after the gap. A process that does not queue leaves that to the head.
    if ARGV[6] ~= '-' then join(ARGV[1], ARGV[7], '1/1', ARGV[6]) else wake_head() end
    return {0, tonumber(ARGV[13]), ARGV[10], 1}
  end
  local function reserve(fences) return next_fences(KEYS[2], fences, ARGV[4], server_time()) end
  local head, refused, pickup = hand_to_next(KEYS[1], ARGV[1], reserve)
  if not head or head == ARGV[1] then
    local fence = next_fences(KEYS[2], ARGV[3], ARGV[4])
    if type(fence) == 'table' then return fence end
    -- SET, because a new lease begins: an extension of the old lease must not outlast it.
    refused = give(KEYS[1], ARGV[1], ARGV[2])
    if refused then return refused end
    return value_of(KEYS[1], redis.call) == ARGV[1] and fence or {fence, 1}
  end
  -- The value is marked, so the release will find this process in the queue. If joining fails, the next poll joins.
  if ARGV[6] ~= '-' and not refused then pcall(join, ARGV[1], ARGV[7], '1/1', ARGV[6]) end
  return {0, tonumber(pickup), head, 1}
end
-- The old owner does not hold the mutex any more: go on in the files that follow.
