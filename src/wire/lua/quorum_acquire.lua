-- Acquires a mutex on one node of a quorum that is held or has waiters, or joins its queue.
-- KEYS, ARGV and reply as in quorum_acquire_free.lua.
local lock, owner, lease = KEYS[1], ARGV[1], ARGV[2]
queue, waiters, life, counts_subscribers = KEYS[3], KEYS[4], ARGV[8], ARGV[9]

local value = value_of(lock, redis.call)
local is_holder = value == owner or value == owner .. MARK

local left, who
if not value then
  left, who = turn_of_another(owner, ARGV[6], '1', begin_turn)
elseif not is_holder then
  left, who = redis.call('PTTL', lock), owner_in(value)
end
if left then
  if ARGV[6] ~= '-' then
    join_for_turn(owner, ARGV[7], '1/1', ARGV[6])
    if value and is_ours(value) and not is_marked(value) then redis.pcall('APPEND', lock, MARK) end
  end
  return {0, left, who}
end

-- The reads come first, so that a companion of another type ends the script before it writes anything. Then comes the
-- record, so that full memory does the same. The lock comes last, so that no failure leaves a lock that was not
-- granted.
local score, record = redis.call('ZSCORE', queue, owner), redis.call('HGET', waiters, owner)
local turn = redis.call('HGET', waiters, TURN)
local others = redis.call('ZCARD', queue) - (score and 1 or 0)
local first, last = reserve(KEYS[2], ARGV[3], ARGV[4], ARGV[5])
if type(first) == 'table' then return first end
if score or record then leave(owner) end
if turn then end_turn() end

if not is_holder then
  redis.call('SET', lock, others > 0 and owner .. MARK or owner, 'PX', lease)
elseif redis.call('PTTL', lock) < tonumber(lease) then
  -- PEXPIRE and not SET, because SET would remove the mark.
  redis.call('PEXPIRE', lock, lease)
end
return {first, last, others > 0 and 1 or 0}
