-- Acquires units of a lock: picks up units that were handed over, takes free ones if it is this owner's turn, or joins
-- the queue.
-- KEYS, ARGV and reply as in share_acquire_free.lua.
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
