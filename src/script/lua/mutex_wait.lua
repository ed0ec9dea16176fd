-- Acquires a mutex: pickup what was handed over, take what is free and due, or queue.
-- KEYS, ARGV and reply as in mutex_take.lua.
local lock, owner, lease = KEYS[1], ARGV[1], ARGV[2]
queue, waiters, life, heard = KEYS[3], KEYS[4], ARGV[8], ARGV[9]

local value = value_of(lock, redis.call)

if value == owner or value == owner .. MARK then
  local fence = next_fences(KEYS[2], ARGV[3], ARGV[4])
  if type(fence) == 'table' then return fence end
  -- Not SET: it would wipe the mark.
  if redis.call('PTTL', lock) < tonumber(lease) then redis.call('PEXPIRE', lock, lease) end
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
  -- Whoever finds the lock free gives it to the first in the queue, which may be itself. A lock that lapsed may
  -- have been handed to a waiter that hangs, and others may hang with it: only those that have polled since then
  -- are believed, so that they cost one pickup window together. One that was merely slow queues again.
  local head, pickup = next_waiter(owner, life / 2)
  head = head or owner
  local ttl = head == owner and lease or pickup
  if not give(lock, head, ttl) then return redis.error_reply('OOM no memory for the lock') end
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
  join(owner, ARGV[7], '1/1', ARGV[6])
  if is_ours(value) and not is_marked(value) then redis.pcall('APPEND', lock, MARK) end
end
return {0, redis.call('PTTL', lock), owner_in(value)}
