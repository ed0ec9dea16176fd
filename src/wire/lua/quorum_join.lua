-- Has one more node of a quorum hold a lock for its owner.
--
-- KEYS  for each name: lock, fence, queue, waiters
-- ARGV  1 owner  2 lease ms  3 its units if several owners share the lock, else 0  4 fence memory ms
--       5 and following: for each name the last fence of the owner (0 if the lock has no fence)
-- Reply 1 the owner holds the lock here  0 another owner holds it or keeps it (min_hold)
-- Idempotent because the owner is unique to the attempt: a repeat finds it as the holder. It never shortens a lease.
--
-- Each record becomes at least the owner's last fence, however far that is from the node's time. Otherwise the next
-- owner, which may count this node, could get a smaller one. If it is the turn of a waiter, the turn ends, and is not
-- noted as lapsed: no waiter that this owner excludes can get the lock.
-- include share.lua
-- include quorum_turn.lua
-- include quorum_fence.lua
local owner, lease, units = ARGV[1], ARGV[2], ARGV[3]

-- Raises the record of a name, which is the number `i` of them. Returns an error as a table, or false.
local function raise_record(key, i)
  local time = server_time()
  local record = raise(key, tonumber(ARGV[4 + i]), ARGV[4], time[1] * 1000000 + time[2])
  return type(record) == 'table' and record
end

-- The reads come first, so that a key of another type ends the script before it writes anything. Then come the records,
-- and the locks last, so that no failure leaves a lock without its fence.
local function join_shared()
  lock, queue, waiters = KEYS[1], KEYS[3], KEYS[4]
  local refused = open()
  if refused then return refused end
  if has_expired then close() end
  if used > 0 and total ~= ALL then return redis.error_reply('WRONGTYPE a lock of another kind has this name') end
  if not redis.call('ZSCORE', lock, units .. ' ' .. owner) and not fits(units, ALL) then return 0 end
  local failed = raise_record(KEYS[2], 1)
  if failed then return failed end
  leave(owner)
  end_turn()
  hold(owner, units, lease, ALL)
  close()
  return 1
end

local function join_whole()
  local values, queued = {}, {}
  for i = 1, #KEYS, 4 do
    local value = value_of(KEYS[i], redis.call)
    if value and not is_held_by(value, owner) then return 0 end
    values[i] = value
    queued[i] = redis.call('ZCARD', KEYS[i + 2]) - (redis.call('ZSCORE', KEYS[i + 2], owner) and 1 or 0) > 0
    redis.call('HLEN', KEYS[i + 3])
  end
  for i = 1, #KEYS, 4 do
    local failed = raise_record(KEYS[i + 1], (i + 3) / 4)
    if failed then return failed end
  end
  for i = 1, #KEYS, 4 do
    queue, waiters = KEYS[i + 2], KEYS[i + 3]
    leave(owner)
    end_turn()
    if not values[i] then
      redis.call('SET', KEYS[i], queued[i] and owner .. MARK or owner, 'PX', lease)
    else
      at_least(KEYS[i], lease)
    end
  end
  return 1
end

return units == '0' and join_whole() or join_shared()
