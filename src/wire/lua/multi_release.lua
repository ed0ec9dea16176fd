-- Releases several mutexes, and takes the owner out of their queues. Each is handed to its first live waiter, or freed. A
-- node of a quorum also releases a single mutex by this script. It wakes the first live waiter, whose turn it is then.
--
-- KEYS  for each: lock, fence, queue, waiters
-- ARGV  1 owner  2 last fence used  3 last of its block (both '' if there are none to give back)  4 life of a waiter ms
--       5 '1' if PUBLISH counts all subscribers
-- Reply 1 released  3 released, and at least one handed to a waiter, or its waiter woken  0 one of the keys was gone
--       -1 another owner holds one of them
-- Idempotent because it acts only on the names that this owner holds or waits for, and ends that. To be woken twice does
-- a waiter no harm.
--
-- Most often the owner holds all names, and no value has a mark, so nobody waits. This part stands before the functions
-- of the other files, because Redis defines a script's functions at each run, which takes longer than this part.
local is_plain, locks = ARGV[2] == '', {}
for i = 1, #KEYS, 4 do
  is_plain = is_plain and redis.pcall('GETRANGE', KEYS[i], 0, 511) == ARGV[1]
  table.insert(locks, KEYS[i])
end
if is_plain then
  redis.call('DEL', unpack(locks))
  return 1
end

-- include gap.lua
-- include quorum_turn.lua on a quorum
life, counts_subscribers = ARGV[4], ARGV[5]
local given = false

local function release(i)
  queue, waiters = KEYS[i + 2], KEYS[i + 3]
  leave(ARGV[1])
  local value = value_of(KEYS[i], redis.call)
  if is_held_by(value, ARGV[1]) then
    give_back(KEYS[i + 1], ARGV[2], ARGV[3])
    given = hand_over(KEYS[i]) or given
    return 1
  end
  if value then return -1 end
  local gap = gap_left()
  if gap and gap > 0 then
    -- In a gap, this owner may be the only one that was woken. The head of the queue now asks in its place.
    wake_head()
  elseif redis.call('ZCARD', queue) > 0 then
    -- A script that finds a lock free gives it to the first live waiter.
    hand_over(KEYS[i])
  end
  return 0
end

local reply = 1
for i = 1, #KEYS, 4 do
  local ok, released, refused = ignore_wrong_type(release, i)
  if refused then return refused end
  if not ok then
    -- The lock or a companion is a key of another type. It must not keep the other names from their release. Without a
    -- queue there is no waiter to hand the lock to.
    local value = value_of(KEYS[i], redis.pcall)
    released = value and -1 or 0
    if is_held_by(value, ARGV[1]) then released = redis.call('DEL', KEYS[i]) end
  end
  reply = math.min(reply, released)
end
return reply == 1 and given and 3 or reply
