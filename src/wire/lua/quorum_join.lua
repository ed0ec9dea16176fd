-- Has one more node of a quorum hold a lock for its owner. record.lua, value.lua, queue*.lua, share.lua,
-- quorum_turn.lua and quorum_fence.lua come before.
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
local owner, lease, units = ARGV[1], ARGV[2], ARGV[3]

-- Raises a record. Returns an error as a table.
local function raise(key, last)
  local time = redis.pcall('TIME')
  if time.err then return time end
  local record = redis.pcall('GET', key)
  if type(record) == 'table' then return record end
  if last_fence(record) >= tonumber(last) then return false end
  local set = redis.pcall('SET', key, last, 'PX', life_of(tonumber(last), ARGV[4], time[1] * 1000000 + time[2]))
  return set.err and set
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
  local failed = raise(KEYS[2], ARGV[5])
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
    if value and value ~= owner and value ~= owner .. MARK then return 0 end
    values[i] = value
    queued[i] = redis.call('ZCARD', KEYS[i + 2]) - (redis.call('ZSCORE', KEYS[i + 2], owner) and 1 or 0) > 0
    redis.call('HLEN', KEYS[i + 3])
  end
  for i = 1, #KEYS, 4 do
    local failed = raise(KEYS[i + 1], ARGV[4 + (i + 3) / 4])
    if failed then return failed end
  end
  for i = 1, #KEYS, 4 do
    queue, waiters = KEYS[i + 2], KEYS[i + 3]
    leave(owner)
    end_turn()
    if not values[i] then
      redis.call('SET', KEYS[i], queued[i] and owner .. MARK or owner, 'PX', lease)
    elseif redis.call('PTTL', KEYS[i]) < tonumber(lease) then
      -- PEXPIRE and not SET, because SET would remove the mark.
      redis.call('PEXPIRE', KEYS[i], lease)
    end
  end
  return 1
end

return units == '0' and join_whole() or join_shared()
