-- Raises the fences of an owner on one node of a quorum, to those that another node answered.
--
-- KEYS  for each name: lock, fence
-- ARGV  1 owner  2 its units if several owners share the lock, else 0  3 number of its fences of each name
--       4 fence memory ms  5 and following: for each name the owner's first fence
-- Reply {record of the last fence of each name}  the owner holds all of them
--       0 it does not hold one of them, because the key or its lease is gone  -1 another owner holds one of them
-- Idempotent because it only raises numbers, and only while this owner holds the lock.
-- include value.lua
-- include quorum_fence.lua
local owner, units, count, memory = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- Returns 1 if the owner holds the lock, 0 if its lease is gone, and -1 if another owner holds the lock.
local function holds(lock)
  if units ~= '0' then
    local ends = redis.call('ZSCORE', lock, units .. ' ' .. owner)
    -- An expired lease may still be listed. Other owners may take its units.
    return ends and tonumber(ends) > math.floor(now / 1000) and 1 or 0
  end
  local value = value_of(lock, redis.call)
  if not value then return 0 end
  return is_held_by(value, owner) and 1 or -1
end

local held = 1
for i = 1, #KEYS, 2 do held = math.min(held, holds(KEYS[i])) end
if held ~= 1 then return held end

local reply = {}
for i = 2, #KEYS, 2 do
  -- The end of its fences is at most LEEWAY from now, but at least the first of them.
  local first = tonumber(ARGV[4 + i / 2])
  local last = math.min(first + count - 1, math.max(first, now + LEEWAY))
  local record = raise(KEYS[i], last, memory, now)
  if type(record) == 'table' then return record end
  table.insert(reply, record)
end
return reply
