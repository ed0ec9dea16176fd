-- At the end of a quantum, or of what a tenure can be passed on for: keeps the mutex in this process where no
-- other waits for it, else hands it over and queues this process again. Always under a new owner.
-- fence.lua, value.lua, queue.lua and gap.lua come before, mutex_wait.lua after it.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 to 9 as in mutex_take.lua (5 is 'poll')  10 the owner that ends  11 last fence used  12 last of its
--       block ('' where none is left)  13 gap ms  14 quantum ms, see gap.lua
-- Reply as in mutex_take.lua
-- Idempotent because the old owner is replaced: repeated, it finds the new one as holder or in the queue.
queue, waiters, life, heard = KEYS[3], KEYS[4], ARGV[8], ARGV[9]
local held = value_of(KEYS[1], redis.call)
if held == ARGV[10] or held == ARGV[10] .. MARK then
  give_back(KEYS[2], ARGV[11], ARGV[12])
  if leave_free(KEYS[1], ARGV[10], ARGV[13], ARGV[14]) then
    -- Queued, this process asks again after the gap; else another has to.
    if ARGV[6] ~= '-' then join(ARGV[1], ARGV[7], '1/1', ARGV[6]) else wake_head() end
    return {0, tonumber(ARGV[13]), ARGV[10]}
  end
  local head, pickup = next_waiter(ARGV[1], life)
  if not head or head == ARGV[1] then
    local fence = next_fences(KEYS[2], ARGV[3], ARGV[4])
    if type(fence) == 'table' then return fence end
    -- A tenure of its own: what the old one was extended to has ended with it.
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    return fence
  end
  -- Before the hand-over, so that its value is marked for us; where it fails, the next poll queues.
  if ARGV[6] ~= '-' then pcall(join, ARGV[1], ARGV[7], '1/1', ARGV[6]) end
  if not give(KEYS[1], head, pickup) then redis.call('DEL', KEYS[1]) end
  return {0, tonumber(pickup), head}
end

