-- Shared: the gap, a time in which a contended mutex is left free for clients that poll.
--
-- | step | actor | action |
-- | --- | --- | --- |
-- | 1 | a process whose lease ends while others wait, once a quantum | deletes the key, and notes when the gap ends |
-- | 2 | a waiter that finds the key gone before that time | gets the reply "held", and asks again when the gap ends |
-- | 3 | a client that polls by SET NX | may take the mutex |
-- | 4 | the first waiter that asks after that time | gives the mutex, if it is free, to the head of the queue |
-- | - | a waiter that gives up while the key is gone | wakes the head of the queue, which then asks for step 2 or 4 |
--
-- The field '=gap' is '<ms at which the gap ends> <the owner that held the mutex before it>'.
-- include queue_next.lua
local GAP = '=gap'
-- The longest gap, ms. A longer one shows that the clock was set back, and has ended.
local LONGEST_GAP = 500

-- Returns how many ms the gap still lasts, and the owner before it. The number is negative if the gap has ended.
-- Returns nil if no gap is known.
local function gap_left()
  local record = redis.call('HGET', waiters, GAP)
  if not record then return nil end
  local ends, before = string.match(record, '^(%d+) (.*)$')
  if not ends then return nil end
  local left = ends - now_ms()
  if left <= LONGEST_GAP then return left, before end
end

-- Leaves a mutex free for `gap` ms. Returns false, and changes nothing, if `gap` is 0 or the last gap ended less than
-- `quantum` ms ago.
local function leave_free(lock, owner, gap, quantum)
  if gap == '0' then return false end
  local left = gap_left()
  if left and left > -tonumber(quantum) then return false end
  redis.call('HSET', waiters, GAP, string.format('%.0f %s', now_ms() + gap, owner))
  -- As long as in `join`, because nothing may shorten the time of this key.
  redis.call('PEXPIRE', waiters, 2 * life)
  redis.call('DEL', lock)
  return true
end
