-- Breaks the hold that one owner has on a lock of any kind, in favour of those who wait, and says so to its process.
-- value.lua, queue.lua and share.lua come before.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 owner  2 channel for those who are broken  3 life of a waiter ms  4 heard
-- Reply 1 broken  0 that owner does not hold it
-- Idempotent because it acts only while this owner holds the lock, and ends that.
lock, queue, waiters, life, heard = KEYS[1], KEYS[3], KEYS[4], ARGV[3], ARGV[4]
local owner, kind, broken = ARGV[1], redis.call('TYPE', KEYS[1]).ok, false
if kind == 'string' then
  -- Another client's value may be long: it is read only if it can be the owner.
  local more = redis.call('STRLEN', lock) - #owner
  local value = more >= 0 and more <= #KEPT + #MARK and redis.call('GET', lock)
  broken = value and owner_in(value) == owner
  if broken then hand_over(lock) end
elseif kind == 'zset' then
  local refused = open()
  if refused then return refused end
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', lock, 0, '+inf')) do
    if owner_in(string.match(member, ' (.*)$')) == owner then broken = drop(member) end
  end
  advance(nil)
  close()
elseif kind ~= 'none' then
  return redis.error_reply('WRONGTYPE something that is no lock has this name')
end
if not broken then return 0 end
-- Refused by an access list, it learns at its next renewal.
redis.pcall('PUBLISH', ARGV[2], owner)
return 1
