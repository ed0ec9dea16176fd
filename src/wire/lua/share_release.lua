-- Releases units of a lock, and gives free units to waiters. A node of a quorum wakes them, and if the lock is free then, it
-- is the first waiter's turn.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 owner  2 last fence used  3 last of its block (both '' if there are none to give back)  4 life of a waiter ms
--       5 '1' if PUBLISH counts all subscribers  6 '1' if the owner may itself be in the queue (a withdrawal)  7 units
-- Reply 1 released  3 released and handed to a waiter, or a waiter woken  0 the owner held none
-- Idempotent because it ends this owner's lease and no other. To be woken twice does a waiter no harm.
--
-- Most often this lease is the only one, and nobody waits. This part stands before the functions of the other files,
-- because Redis defines a script's functions at each run, which takes longer than this part. The sorted set then has three
-- members: the lease, and two that count units (share.lua).
if ARGV[2] == '' and redis.call('EXISTS', KEYS[3], KEYS[4]) == 0 and redis.call('ZCARD', KEYS[1]) == 3 then
  local ends = redis.call('ZSCORE', KEYS[1], ARGV[7] .. ' ' .. ARGV[1])
  local time = redis.call('TIME')
  if ends and tonumber(ends) > time[1] * 1000 + math.floor(time[2] / 1000) then
    redis.call('DEL', KEYS[1])
    return 1
  end
end

-- include share.lua
-- include quorum_share.lua on a quorum
lock, queue, waiters, life, counts_subscribers = KEYS[1], KEYS[3], KEYS[4], ARGV[4], ARGV[5]
local refused = open()
if refused then return refused end
if ARGV[6] == '1' then
  local _, _, denied = ignore_wrong_type(leave, ARGV[1])
  if denied then return denied end
end
local released = drop(ARGV[7] .. ' ' .. ARGV[1])
if released then give_back(KEYS[2], ARGV[2], ARGV[3]) end
advance(nil)
close()
if not released then return 0 end
return given and 3 or 1
