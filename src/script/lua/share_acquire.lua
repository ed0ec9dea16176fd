-- Acquires units of a lock: picks up units that were handed over, takes free ones if it is this owner's turn, or joins
-- the queue. record.lua, fence.lua, value.lua, queue.lua and share.lua come before.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 owner  2 lease ms  3 number of fences  4 fence memory ms  5 'read', 'write' or 'permits'
--       6 channel: '-' if the caller does not queue, '' if it queues without a channel  7 pickup window ms
--       8 life of a waiter ms  9 '1' if PUBLISH counts all subscribers  10 units  11 units of the lock
--       12 the writer that ends, at the end of its quantum or to become this reader; '' if there is none
--       13 last fence used  14 last of its block (both '' if there are none to give back)
--       15 a lease of this process that the caller may share; '' if there is none
-- Reply first fence                    granted
--       {first fence, 1}               granted, and others wait
--       {fence, 2}                     no process waits: share that lease
--       {0, ttl ms, holder}            held
--       {-2, units}                    others divide the lock into this number of units
--       -1                             the writer that was to become a reader does not hold the lock any more
-- Idempotent because the owner is unique to the attempt: a repeat finds it as a holder, and grants again.
lock, queue, waiters, life, counts_subscribers = KEYS[1], KEYS[3], KEYS[4], ARGV[8], ARGV[9]
local owner, lease, units, from = ARGV[1], ARGV[2], ARGV[10], ARGV[12]
local is_reader, waits = ARGV[5] == 'read', ARGV[6] ~= '-'
local refused = open()
if refused then return refused end

local asked_total = tonumber(ARGV[11])
if used > 0 and total ~= asked_total then
  advance(nil)
  close()
  if total == ALL or asked_total == ALL then
    return redis.error_reply('WRONGTYPE a lock of another kind has this name')
  end
  return {-2, total}
end
total = asked_total

if from ~= '' then
  if drop(total .. ' ' .. from) then
    give_back(KEYS[2], ARGV[13], ARGV[14])
  elseif is_reader and not redis.call('ZSCORE', lock, units .. ' ' .. owner) then
    advance(nil)
    close()
    return -1
  end
end

local shared = ARGV[15]
if shared ~= '' and redis.call('ZSCORE', lock, units .. ' ' .. shared) then
  advance(nil)
  local fence = last_fence(redis.pcall('GET', KEYS[2]))
  if redis.call('ZCARD', queue) == 0 and (fence > 0 or ARGV[3] == '0') then
    hold(shared, units, lease)
    close()
    return {fence, 2}
  end
end

local is_holder = redis.call('ZSCORE', lock, units .. ' ' .. owner)
if is_holder or (is_reader and from ~= '') then
  hold(owner, units, lease)
  leave(owner)
elseif redis.call('ZCARD', queue) == 0 and fits(units) then
  hold(owner, units, lease)
elseif waits then
  join(owner, ARGV[7], units .. '/' .. ARGV[11], ARGV[6])
end
advance(owner, lease)
-- No waiter can use the units that are free.
if not waits and redis.call('ZCARD', queue) == 0 and fits(units) then hold(owner, units, lease) end

if redis.call('ZSCORE', lock, units .. ' ' .. owner) then
  local fence
  if is_reader and ARGV[3] ~= '0' then
    -- Readers have the last writer's fence. If Redis has forgotten it, they get a new one, between that writer's and
    -- the next writer's.
    fence = redis.pcall('GET', KEYS[2])
    if type(fence) ~= 'table' then fence = last_fence(fence) end
    if fence == 0 then fence = next_fences(KEYS[2], '1', ARGV[4]) end
  else
    fence = next_fences(KEYS[2], ARGV[3], ARGV[4])
  end
  if type(fence) == 'table' and not is_holder then drop(units .. ' ' .. owner) end
  close()
  if type(fence) == 'table' then return fence end
  if redis.call('ZCARD', queue) > 0 then return {fence, 1} end
  return fence
end

close()
local first = redis.call('ZRANGEBYSCORE', lock, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
if not first[1] then return {0, 0, redis.call('ZRANGE', queue, 0, 0)[1] or ''} end
return {0, first[2] - now, owner_in(string.match(first[1], ' (.*)$'))}
