-- Acquires units of a lock that is divided into units: takes free ones if it is this owner's turn, picks up units that were
-- handed over, or joins the queue.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 owner  2 lease ms  3 number of fences; '0' if the lock gets none, and its fence is then 0
--       4 fence memory ms  5 'read', 'write' or 'permits'
--       6 channel: '-' if the caller does not queue, '' if it queues without a channel  7 pickup window ms
--       8 life of a waiter ms  9 '1' if PUBLISH counts all subscribers  10 units  11 units of the lock
--       12 the writer that ends, at the end of its quantum or to become this reader; '' if there is none
--       13 last fence used  14 last of its block (both '' if there are none to give back)
--       15 a lease of this process that the caller may share; '' if there is none
-- Reply first fence                    granted
--       {first fence, 1}               granted, and others wait
--       {fence, 2}                     no process waits: share that lease
--       {0, ttl ms, holder}            held
--       {-2, units, reply}             the reply; and others divide the lock into this number of units
--       -1                             the writer that was to become a reader does not hold the lock any more
-- Idempotent because the owner is unique to the attempt: a repeat finds it as a holder, and grants again.
--
-- Most often nobody holds the lock or waits for it. This part stands before the functions of the other files, because
-- Redis defines a script's functions at each run, which takes longer than this part. share.lua
-- describes the sorted set that it writes.
-- include fence.lua

-- Returns the first fence. Readers have the last writer's fence. If Redis has forgotten that, they get a new one, between
-- that writer's and the next writer's. Returns an error as a table. `time` is as for next_fences.
local function fence_of(how, time)
  if how == 'read' and ARGV[3] ~= '0' then
    local record = redis.pcall('GET', KEYS[2])
    if type(record) == 'table' then return record end
    local last = last_fence(record)
    return last > 0 and last or next_fences(KEYS[2], '1', ARGV[4], time)
  end
  return next_fences(KEYS[2], ARGV[3], ARGV[4], time)
end

if ARGV[12] == '' and redis.call('EXISTS', KEYS[1], KEYS[3], KEYS[4]) == 0 then
  local time = redis.call('TIME')
  local fence = fence_of(ARGV[5], time)
  if type(fence) == 'table' then return fence end
  local ends = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2])
  redis.call('ZADD', KEYS[1], ends, ARGV[10] .. ' ' .. ARGV[1], '-' .. ARGV[11], '=of', '-' .. ARGV[10], '=used')
  redis.call('PEXPIREAT', KEYS[1], ends)
  return fence
end

-- include share.lua
lock, queue, waiters, life, counts_subscribers = KEYS[1], KEYS[3], KEYS[4], ARGV[8], ARGV[9]
local owner, lease, units, from = ARGV[1], ARGV[2], ARGV[10], ARGV[12]
local is_reader, waits = ARGV[5] == 'read', ARGV[6] ~= '-'
local refused = open()
if refused then return refused end

local asked_total = tonumber(ARGV[11])
if used > 0 and (total == ALL) ~= (asked_total == ALL) then
  advance(nil)
  close()
  return redis.error_reply('WRONGTYPE a lock of another kind has this name')
end
local others_total = used > 0 and total ~= asked_total and total

-- Returns a reply with the number of units of the others, if they use another.
local function with_difference(reply)
  return others_total and {-2, others_total, reply} or reply
end

if from ~= '' then
  if drop(ALL .. ' ' .. from) then
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
    hold(shared, units, lease, asked_total)
    close()
    return {fence, 2}
  end
end

local is_holder = redis.call('ZSCORE', lock, units .. ' ' .. owner)
if is_holder or (is_reader and from ~= '') then
  hold(owner, units, lease, asked_total)
  leave(owner)
elseif redis.call('ZCARD', queue) == 0 and fits(units, asked_total) then
  hold(owner, units, lease, asked_total)
elseif waits then
  join(owner, ARGV[7], units .. '/' .. ARGV[11], ARGV[6])
end
-- No waiter that is awake can use the units that are free.
if advance(owner, lease) and fits(units, asked_total) and not redis.call('ZSCORE', lock, units .. ' ' .. owner) then
  leave(owner)
  hold(owner, units, lease, asked_total)
end

if redis.call('ZSCORE', lock, units .. ' ' .. owner) then
  local fence = fence_of(ARGV[5])
  if type(fence) == 'table' and not is_holder then drop(units .. ' ' .. owner) end
  close()
  if type(fence) == 'table' then return fence end
  return with_difference(redis.call('ZCARD', queue) > 0 and {fence, 1} or fence)
end

close()
local first = redis.call('ZRANGEBYSCORE', lock, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
if not first[1] then return {0, 0, redis.call('ZRANGE', queue, 0, 0)[1] or ''} end
return with_difference({0, first[2] - now, owner_in(string.match(first[1], ' (.*)$'))})
