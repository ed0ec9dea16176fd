-- Raises the fences of an owner on one node of a quorum, to those that another node answered. record.lua, value.lua
-- and quorum_fence.lua come before.
--
-- KEYS  for each name: lock, fence
-- ARGV  1 owner  2 its units if several owners share the lock, else 0  3 number of its fences of each name
--       4 fence memory ms  5 and following: for each name the owner's first fence
-- Reply {record of the last fence of each name}  the owner holds all of them
--       0 it does not hold one of them, because the key or its lease is gone  -1 another owner holds one of them
-- Idempotent because it only raises numbers, and only while this owner holds the lock.
local owner, units = ARGV[1], ARGV[2]

-- Returns 1 if the owner holds the lock, 0 if its lease is gone, and -1 if another owner holds the lock.
local function holds(lock)
  if units ~= '0' then
    local ends = redis.call('ZSCORE', lock, units .. ' ' .. owner)
    local time = redis.call('TIME')
    -- An expired lease may still be listed. Other owners may take its units.
    return ends and tonumber(ends) > time[1] * 1000 + math.floor(time[2] / 1000) and 1 or 0
  end
  local value = value_of(lock, redis.call)
  if not value then return 0 end
  return (value == owner or value == owner .. MARK) and 1 or -1
end

-- Raises the record to the end of the `count` fences from `first` on. That end is at most LEEWAY from now, but at least
-- `first`. Returns the record, which may have been higher. Returns an error as a table.
local function raise(key, first, count, memory)
  local time = redis.pcall('TIME')
  if time.err then return time end
  local now = time[1] * 1000000 + time[2]
  local record = redis.pcall('GET', key)
  if type(record) == 'table' then return record end
  first = tonumber(first)
  local last = math.min(first + count - 1, math.max(first, now + LEEWAY))
  local before = last_fence(record)
  if before >= last then return before end
  local set = redis.pcall('SET', key, last, 'PX', life_of(last, memory, now))
  return set.err and set or last
end

local held = 1
for i = 1, #KEYS, 2 do held = math.min(held, holds(KEYS[i])) end
if held ~= 1 then return held end

local reply = {}
for i = 2, #KEYS, 2 do
  local record = raise(KEYS[i], ARGV[4 + i / 2], ARGV[3], ARGV[4])
  if type(record) == 'table' then return record end
  table.insert(reply, record)
end
return reply
