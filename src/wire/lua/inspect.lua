-- Returns the holders of locks, and the number of their waiters.
--
-- KEYS  for each lock: lock, fence, queue, waiters
-- ARGV  1 'named' if the caller named the locks, 'found' if a scan found the keys, which may be no locks
-- Reply for each lock {units of the lock (0 for a mutex), last fence, number of waiters, holders, the first waiters}.
--       nil if it has neither holder nor waiter, or if a key that a scan found is no lock.
--       holders: for each owner, ttl ms, units, 1 if it has given the lock up and keeps it for a min_hold, else 0
--       waiters: for each owner, µs since 1970 when it joined, units
--       For a rate limiter that the caller named {-1, permits, per µs, µs that a call would wait}.
--       The reply to 'found' may end early, after very many holders and waiters.
-- Idempotent because it only reads.
-- include value.lua
local OURS = '^lh1:%x[%x-]+:[!-~]*$'
-- The longest value with an owner of ours, bytes; and the longest value of another client that a scan may show.
local LONGEST, LONGEST_OF_OTHERS = 373, 1024
-- How many bytes of a named mutex's value are shown; the number of holders and waiters after which the reply ends early; and
-- how many waiters of a lock are shown.
local SHOWN, ENOUGH, MOST_WAITERS = 65536, 1000, 100
local found = ARGV[1] == 'found'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Returns whether a string that a scan found holds an owner. The script reads at most four bytes of a value that may be
-- no owner of ours.
local function is_owner(lock, fence, queue)
  local length = redis.call('STRLEN', lock)
  if length <= LONGEST and redis.call('GETRANGE', lock, 0, 3) == 'lh1:'
    and string.find(redis.call('GET', lock), OURS) then
    return true
  end
  -- Another client's lock is shown if this crate has a fence or a queue for it.
  return length <= LONGEST_OF_OTHERS and redis.call('EXISTS', fence, queue) > 0
end

-- Returns the owner in a value, and whether it keeps a lock that it has given up.
local function holder_in(value)
  local marked = is_marked(value) and string.sub(value, 1, -2) or value
  local owner = owner_in(value)
  return owner, owner ~= marked and 1 or 0
end

local function no_lock(what)
  return not found and redis.error_reply('WRONGTYPE ' .. what .. ' has this name')
end

-- Returns the first waiters. The score of one at the front of the queue is below zero: it counts from its last request.
local function line(queue, waiters)
  local all = redis.call('ZRANGE', queue, 0, MOST_WAITERS - 1, 'WITHSCORES')
  local shown = {}
  for i = 1, #all, 2 do
    local joined = tonumber(all[i + 1])
    local seen, units = string.match(redis.call('HGET', waiters, all[i]) or '', '^(%d+) %d+ (%d+)/')
    if joined < 0 then joined = (tonumber(seen) or 0) * 1000 end
    for _, part in ipairs({all[i], joined, tonumber(units) or 1}) do table.insert(shown, part) end
  end
  return shown
end

-- Returns a rate limiter, in the terms of rate_limiter.lua: its figures, and how long a call would wait.
local function limiter(log)
  local permits, per, last, ahead = string.match(redis.call('LINDEX', log, 0), '^(%d+) (%d+) (%d+) ?(%d*)$')
  if not permits then return no_lock('a list that is no rate limiter') end
  permits, per = tonumber(permits), tonumber(per)
  local clock = math.max(time[1] * 1000000 + time[2] + (tonumber(ahead) or 0), tonumber(last))
  local admitted_at, booked = clock, redis.call('LLEN', log) - 1
  if booked > 0 then admitted_at = math.max(admitted_at, tonumber(redis.call('LINDEX', log, -1))) end
  if booked >= permits then admitted_at = math.max(admitted_at, redis.call('LINDEX', log, -permits) + per) end
  return {-1, permits, per, admitted_at - clock}
end

local function look(lock, fence, queue, waiters)
  local kind, total, holders = redis.call('TYPE', lock).ok, 0, {}
  if kind == 'string' then
    if found and not is_owner(lock, fence, queue) then return false end
    local owner, kept = holder_in(redis.call('GETRANGE', lock, 0, SHOWN - 1))
    holders = {owner, redis.call('PTTL', lock), 1, kept}
  elseif kind == 'zset' then
    total = redis.call('ZSCORE', lock, '=of')
    if not total then return no_lock('a sorted set that is no lock') end
    total = -total
    -- An expired lease may still be listed. It is not shown.
    local shares = redis.call('ZRANGEBYSCORE', lock, string.format('(%.0f', now), '+inf', 'WITHSCORES')
    for i = 1, #shares, 2 do
      local units, owner = string.match(shares[i], '^(%d+) (.*)$')
      local kept
      owner, kept = holder_in(owner)
      for _, part in ipairs({owner, shares[i + 1] - now, tonumber(units), kept}) do table.insert(holders, part) end
    end
  elseif kind == 'list' and not found then
    -- Of a list that a scan found, the first element may be long, and cannot be read in part.
    return limiter(lock)
  elseif kind ~= 'none' then
    return no_lock('something that is no lock')
  end
  local waiting = redis.call('ZCARD', queue)
  if #holders == 0 and waiting == 0 then return false end
  if kind == 'none' then
    -- The lock is free for a moment. The record of its first waiter tells how many units the lock will have.
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    local waiter_total = string.match(redis.call('HGET', waiters, head) or '', '^%d+ %d+ %d+/(%d+) ')
    total = waiter_total and waiter_total ~= '1' and tonumber(waiter_total) or 0
  end
  local last = redis.pcall('GET', fence)
  return {total, type(last) == 'string' and last, waiting, holders, line(queue, waiters)}
end

local reply, parts = {}, 0
for i = 1, #KEYS, 4 do
  if found then
    -- By pcall, so that one bad key does not end the page.
    local ok, info = pcall(look, KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3])
    table.insert(reply, ok and info)
    if ok and info then parts = parts + #info[4] / 4 + #info[5] / 3 end
    if parts > ENOUGH then break end
  else
    local info = look(KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3])
    if info and info.err then return info end
    table.insert(reply, info)
  end
end
return reply
