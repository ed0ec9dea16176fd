-- Acquires several mutexes, all or none. record.lua and fence.lua come before. value.lua, queue*.lua,
-- gap.lua and multi_acquire.lua follow.
--
-- KEYS  for each, in the order of their names: lock, fence, queue, waiters
-- ARGV  1 to 9 as in mutex_acquire_free.lua (3 is '1' or '0'; 5 is ignored)  10 the owner that ends, or ''
-- Reply {fence of the first, …, 0}     granted
--       {0, ms, holder}                held: the first held name has this holder; ask again within this time
-- Idempotent because the owner is unique to the attempt: a repeat finds it as the holder, and grants again.
--
-- Most often all names are free, and nobody waits. This part stands before the functions of the other files, because
-- Redis defines a script's functions at each run, which takes longer than this part.

-- Returns the fences of all names for the reply, or an error.
local function fences_of_all()
  local time, fences = ARGV[3] ~= '0' and redis.pcall('TIME'), {}
  for i = 1, #KEYS, 4 do
    local fence = next_fences(KEYS[i + 1], ARGV[3], ARGV[4], time)
    if type(fence) == 'table' then return fence end
    table.insert(fences, fence)
  end
  table.insert(fences, 0)
  return fences
end

-- Returns whether no lock, queue or waiter is there. One command asks for all of them: a set has at most 1,000 names, and
-- Lua passes at most 8,000 arguments to a command.
local function are_free()
  local keys = {}
  for i = 1, #KEYS, 4 do
    table.insert(keys, KEYS[i])
    table.insert(keys, KEYS[i + 2])
    table.insert(keys, KEYS[i + 3])
  end
  return redis.call('EXISTS', unpack(keys)) == 0
end

if are_free() then
  local fences = fences_of_all()
  if fences.err then return fences end
  for i = 1, #KEYS, 4 do redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2]) end
  return fences
end

