-- Acquires a mutex: takes a free one, picks up one that was handed over, or joins the queue. It may end another owner of
-- the same process first (a take-over), at the end of a quantum or because that lease cannot serve the next thread. If
-- no other process waits, the new owner then gets the mutex. Otherwise the mutex is handed over.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 owner  2 lease ms  3 number of fences; '0' if the lock gets none, and its fence is then 0
--       4 fence memory ms
--       5 'take' (take a free lock at once) or 'poll' (let the queue go first)
--       6 channel: '-' if the caller does not queue, '' if it queues without a channel. If the caller takes a grant by
--       message, ' <number of fences, 0 or 1> <nonce>' follows the channel.  7 pickup window ms
--       8 life of a waiter ms  9 '1' if PUBLISH counts all subscribers
--       For a take-over ('poll'): 10 the owner that ends  11 last fence used  12 last of its block (both '' if there are
--       none to give back)  13 gap ms  14 quantum ms, see gap.lua
-- Reply first fence                    granted
--       {first fence, 1}               granted, and others wait
--       {0, ttl ms (PTTL), holder}     held (of another client's long value only the beginning)
--       {0, ms, holder, 1}             the same, because a take-over has handed the mutex over, or left it free in a gap.
--                                      The holder in a gap is the owner that ended.
-- Idempotent because the owner is unique to the attempt: a repeat finds it as the holder, and grants again, or finds it in
-- the queue.
--
-- A free mutex is taken without a look into the queue. That part and the next one stand before the functions that they do
-- not need, because Redis defines a script's functions at each run.
-- include fence.lua
if ARGV[5] == 'take' and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local fence = next_fences(KEYS[2], ARGV[3], ARGV[4])
  -- Scripts do not roll back, so the lock is deleted here: without a fence it would be of no use to its owner.
  if type(fence) == 'table' then redis.call('DEL', KEYS[1]) end
  return fence
end

-- include queue.lua
local lock, owner, lease, from = KEYS[1], ARGV[1], ARGV[2], ARGV[10]
queue, waiters, life, counts_subscribers = KEYS[3], KEYS[4], ARGV[8], ARGV[9]

local value = value_of(lock, redis.call)
local is_holder, is_taken_over = is_held_by(value, owner), from and is_held_by(value, from)

-- Joins the queue. Returns false if the caller does not queue.
local function enqueue()
  if ARGV[6] == '-' then return false end
  join(owner, ARGV[7], '1/1', ARGV[6])
  return true
end

-- Returns the reply that another owner holds the mutex.
local function held_by_another()
  if enqueue() then mark(lock, value) end
  return {0, redis.call('PTTL', lock), owner_in(value)}
end

if value and not is_holder and not is_taken_over then return held_by_another() end

-- include gap.lua
-- Returns the reply of a grant.
local function granted(fence)
  return value_of(lock, redis.call) == owner and fence or {fence, 1}
end

if is_taken_over then
  give_back(KEYS[2], ARGV[11], ARGV[12])
  if leave_free(lock, from, ARGV[13], ARGV[14]) then
    -- In the queue, this process asks again after the gap. A process that does not queue leaves that to the head.
    if not enqueue() then wake_head() end
    return {0, tonumber(ARGV[13]), from, 1}
  end
  local function reserve(fences) return next_fences(KEYS[2], fences, ARGV[4], server_time()) end
  local head, refused, pickup = hand_to_next(lock, owner, reserve)
  if not head or head == owner then
    local fence = next_fences(KEYS[2], ARGV[3], ARGV[4])
    if type(fence) == 'table' then return fence end
    -- SET, because a new lease begins: an extension of the old lease must not outlast it.
    refused = give(lock, owner, lease)
    return refused or granted(fence)
  end
  -- The value is marked, so the release will find this process in the queue. If joining fails, the next poll joins.
  if not refused then pcall(enqueue) end
  return {0, tonumber(pickup), head, 1}
end

if is_holder then
  local fence = next_fences(KEYS[2], ARGV[3], ARGV[4])
  if type(fence) == 'table' then return fence end
  at_least(lock, lease)
  leave(owner)
  return granted(fence)
end

local left, before = gap_left()
if left and left > 0 then
  enqueue()
  return {0, left, before}
end
-- The lock is free: the first waiter that is awake gets it, perhaps the caller. If no waiter is awake, the caller gets
-- the lock. The caller may be in the queue, behind more silent waiters than one script passes over.
local head, refused = hand_to_next(lock, owner)
if not head then
  leave(owner)
  head = owner
end
if head == owner then refused = give(lock, owner, lease) end
if refused then return refused end
if head == owner then
  local fence = next_fences(KEYS[2], ARGV[3], ARGV[4])
  if type(fence) == 'table' then
    redis.call('DEL', lock)
    return fence
  end
  return granted(fence)
end
value = value_of(lock, redis.call)
return held_by_another()
