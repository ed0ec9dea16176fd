-- Acquires a mutex: picks up one that was handed over, takes a free one if it is this owner's turn, or joins the queue.
-- mutex_acquire_held.lua has read `value`. KEYS, ARGV and reply as in mutex_acquire_free.lua.
if is_holder then
  local fence = next_fences(KEYS[2], ARGV[3], ARGV[4])
  if type(fence) == 'table' then return fence end
  -- PEXPIRE and not SET, because SET would remove the mark. It always writes, so that a WAIT that follows waits for this
  -- write: without a fence there may be no other.
  redis.call('PEXPIRE', lock, string.format('%.0f', math.max(redis.call('PTTL', lock), lease)))
  leave(owner)
  return value == owner and fence or {fence, 1}
end

if not value then
  local gap, before = gap_left()
  if gap and gap > 0 then
    if ARGV[6] ~= '-' then join(owner, ARGV[7], '1/1', ARGV[6]) end
    return {0, gap, before}
  end
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
    return value == owner and fence or {fence, 1}
  end
end
return held_by_another(recall)
