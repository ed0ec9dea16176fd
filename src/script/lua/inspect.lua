-- Says who holds locks, and how many wait for them. value.lua comes before.
--
-- KEYS  for each: lock, fence, queue, waiters
-- ARGV  1 'named' where they were given as the names of locks, 'found' where they may be anything of the user's
-- Reply for each {units of the whole (0 for a mutex), last fence, how many wait, {for each holder: owner, ttl ms,
--       units}}; nil where nobody holds it and nobody waits, and where what was found is no lock. For the first of what
--       was found only, where these have very many holders.
-- Idempotent because it only reads.
local OURS = '^lh1:%x[%x-]+:[!-~]*$'
-- The longest owner of ours, kept and marked; and the longest of another client's that is looked at where it was found.
local LONGEST, LONGEST_OF_OTHERS = 172, 1024
-- How much is shown of a value, which may be anything; and after how many holders no more locks are looked at.
local SHOWN, ENOUGH = 65536, 10000
local found = ARGV[1] == 'found'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Whether a string that was found holds an owner. No more than four bytes are read of what is somebody's own.
local function is_owner(lock, fence, queue)
  local length = redis.call('STRLEN', lock)
  if length <= LONGEST and redis.call('GETRANGE', lock, 0, 3) == 'lh1:'
    and string.find(redis.call('GET', lock), OURS) then
    return true
  end
  -- Another client's, where ours have had the lock too or wait for it.
  return length <= LONGEST_OF_OTHERS and redis.call('EXISTS', fence, queue) > 0
end

local function no_lock(what)
  return not found and redis.error_reply('WRONGTYPE ' .. what .. ' has this name')
end

local function look(lock, fence, queue, waiters)
  local kind, of, holders = redis.call('TYPE', lock).ok, 0, {}
  if kind == 'string' then
    if found and not is_owner(lock, fence, queue) then return false end
    local owner = owner_in(redis.call('GETRANGE', lock, 0, SHOWN - 1))
    holders = {owner, redis.call('PTTL', lock), 1}
  elseif kind == 'zset' then
    of = redis.call('ZSCORE', lock, '=of')
    if not of then return no_lock('a sorted set that is no lock') end
    of = -of
    -- One that has run out is anybody's, though nobody has noticed yet.
    local shares = redis.call('ZRANGEBYSCORE', lock, string.format('(%.0f', now), '+inf', 'WITHSCORES')
    for i = 1, #shares, 2 do
      local units, owner = string.match(shares[i], '^(%d+) (.*)$')
      table.insert(holders, owner_in(owner))
      table.insert(holders, shares[i + 1] - now)
      table.insert(holders, tonumber(units))
    end
  elseif kind ~= 'none' then
    return no_lock('something that is no lock')
  end
  local waiting = redis.call('ZCARD', queue)
  if #holders == 0 and waiting == 0 then return false end
  if kind == 'none' then
    -- Free for a moment: the first who waits says of what kind it is going to be.
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    local whole = string.match(redis.call('HGET', waiters, head) or '', '^%d+ %d+ %d+/(%d+) ')
    of = whole and whole ~= '1' and tonumber(whole) or 0
  end
  local last = redis.pcall('GET', fence)
  return {of, type(last) == 'string' and last, waiting, holders}
end

local reply, holders = {}, 0
for i = 1, #KEYS, 4 do
  if found then
    -- One bad key does not end the page.
    local ok, info = pcall(look, KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3])
    table.insert(reply, ok and info)
    if ok and info then holders = holders + #info[4] / 3 end
    if holders > ENOUGH then break end
  else
    local info = look(KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3])
    if info and info.err then return info end
    table.insert(reply, info)
  end
end
return reply
