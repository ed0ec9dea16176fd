-- Takes a lock of any kind from one owner, gives it to the waiters, and notifies the owner's process. A node of a quorum
-- wakes the waiters in place of that.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 owner  2 channel for owners that lost their lock to an operator  3 life of a waiter ms
--       4 '1' if PUBLISH counts all subscribers
-- Reply 1 the owner lost the lock  0 the owner does not hold it
-- Idempotent because it acts only while this owner holds the lock, and ends that.
-- include share.lua
-- include quorum_share.lua on a quorum
lock, queue, waiters, life, counts_subscribers = KEYS[1], KEYS[3], KEYS[4], ARGV[3], ARGV[4]
local owner, kind, has_ended = ARGV[1], redis.call('TYPE', KEYS[1]).ok, false
if kind == 'string' then
  -- Another client's value may be long: it is read only if it can be the owner.
  local more = redis.call('STRLEN', lock) - #owner
  local value = more >= 0 and more <= #KEPT + #MARK and redis.call('GET', lock)
  has_ended = value and owner_in(value) == owner
  if has_ended then hand_over(lock) end
elseif kind == 'zset' then
  local refused = open()
  if refused then return refused end
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', lock, 0, '+inf')) do
    if owner_in(string.match(member, ' (.*)$')) == owner then has_ended = drop(member) end
  end
  advance(nil)
  close()
elseif kind ~= 'none' then
  return redis.error_reply('WRONGTYPE something that is no lock has this name')
end
if not has_ended then return 0 end
-- If an access list forbids the PUBLISH, the owner's process learns of it by its next renewal.
redis.pcall('PUBLISH', ARGV[2], owner)
return 1
