-- Acquires a mutex: picks up one that was handed over, takes a free one if it is this owner's turn, or joins the queue.
-- KEYS, ARGV and reply as in mutex_acquire_free.lua.
local lock, owner, lease = KEYS[1], ARGV[1], ARGV[2]
queue, waiters, life, counts_subscribers = KEYS[3], KEYS[4], ARGV[8], ARGV[9]

local value = value_of(lock, redis.call)

if value == owner or value == owner .. MARK then
  local fence = next_fences(KEYS[2], ARGV[3], ARGV[4])
  if type(fence) == 'table' then return fence end
  -- PEXPIRE and not SET, because SET would remove the mark. It always writes, so that a WAIT that follows waits for this
  -- write: without a fence there may be no other.
  redis.call('PEXPIRE', lock, string.format('%.0f', math.max(redis.call('PTTL', lock), lease)))
  leave(owner)
  if value == owner then return fence end
  return {fence, 1}
end

local gap, before
if not value then gap, before = gap_left() end
if gap and gap > 0 then
  if ARGV[6] ~= '-' then join(owner, ARGV[7], '1/1', ARGV[6]) end
  return {0, gap, before}
end

if not value then
  -- A script that finds the lock free gives it to the first live waiter, which may be its caller. If a lease has
  -- expired, its process may hang, and other waiters may hang too. So only waiters that have polled within half a life
  -- count as alive, and all that hang cost one pickup window together. A waiter that was only slow joins again.
  local head, refused = give_to_next(lock, owner, life / 2)
  head = head or owner
  if head == owner then refused = give(lock, owner, lease) end
  if refused then return refused end
  value = value_of(lock, redis.call)
  if head == owner then
    local fence = next_fences(KEYS[2], ARGV[3], ARGV[4])
    if type(fence) == 'table' then
      redis.call('DEL', lock)
      return fence
    end
    if value == owner then return fence end
    return {fence, 1}
  end
end

if ARGV[6] ~= '-' then
  local is_new = join(owner, ARGV[7], '1/1', ARGV[6])
  if is_ours(value) then
    if not is_marked(value) then redis.pcall('APPEND', lock, MARK) end
    recall(lock, value, owner, is_new)
  end
end
return {0, redis.call('PTTL', lock), owner_in(value)}
