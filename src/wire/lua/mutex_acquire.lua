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
  -- The lock is free: the first waiter that is awake gets it, perhaps the caller. If no waiter is awake, the caller gets
  -- the lock. The caller may be in the queue, behind more silent waiters than one script passes over.
  local head, refused = hand_to_next(lock, owner)
  if not head then
    leave(owner)
    head = owner
  end
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
return held_by_another()
