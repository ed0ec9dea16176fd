-- Releases several mutexes. Each is handed to its first live waiter, or freed. value.lua, queue*.lua, gap.lua and
-- multi_release.lua follow.
--
-- KEYS  for each: lock, fence, queue, waiters
-- ARGV  1 owner  2 life of a waiter ms  3 '1' if PUBLISH counts all subscribers
-- Reply 1 released  3 released, and at least one handed to a waiter  0 one of the keys was gone
--       -1 another owner holds one of them
-- Idempotent because it acts only on the names that this owner holds, and ends that.
--
-- Most often the owner holds all names, and no value has a mark, so nobody waits. This part stands before the functions
-- of the other files, because Redis defines a script's functions at each run, which takes longer than this part.
local is_plain, locks = true, {}
for i = 1, #KEYS, 4 do
  is_plain = is_plain and redis.pcall('GETRANGE', KEYS[i], 0, 511) == ARGV[1]
  table.insert(locks, KEYS[i])
end
if is_plain then
  redis.call('DEL', unpack(locks))
  return 1
end

