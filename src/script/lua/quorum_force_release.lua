-- Takes a lock of any kind from one owner on one node of a quorum, wakes the first live waiters, and notifies the
-- owner's process. value.lua, queue.lua, share.lua, quorum_turn.lua and quorum_share.lua come before.
--
-- KEYS, ARGV and Reply as in force_release.lua
-- Idempotent because it acts only while this owner holds the lock, and ends that.
--
-- force_release.lua gives the lock to the waiters. A script gives a quorum's lock only to its caller.
lock, queue, waiters, life, counts_subscribers = KEYS[1], KEYS[3], KEYS[4], ARGV[3], ARGV[4]
local owner, kind, has_ended = ARGV[1], redis.call('TYPE', lock).ok, false
if kind == 'string' then
  -- Another client's value may be long: it is read only if it can be the owner.
  local more = redis.call('STRLEN', lock) - #owner
  local value = more >= 0 and more <= #KEPT + #MARK and redis.call('GET', lock)
  has_ended = value and owner_in(value) == owner
  if has_ended then redis.call('DEL', lock) end
elseif kind == 'zset' then
  local refused = open_lock()
  if refused then return refused end
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', lock, 0, '+inf')) do
    if owner_in(string.match(member, ' (.*)$')) == owner then has_ended = drop(member) end
  end
  if has_ended or has_expired then close() end
elseif kind ~= 'none' then
  return redis.error_reply('WRONGTYPE something that is no lock has this name')
end
if not has_ended then return 0 end
-- The owner has lost the lock, so an error of the queue would mislead the caller.
ignore_wrong_type(kind == 'string' and begin_turn or wake_first)
-- If an access list forbids the PUBLISH, the owner's process learns of it by its next renewal.
redis.pcall('PUBLISH', ARGV[2], owner)
return 1
