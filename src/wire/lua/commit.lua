-- Executes writes, if an owner holds all of these locks.
--
-- KEYS  the locks, then the key of each write
-- ARGV  1 owner  2 its units if several owners share the lock, else 0  3 number of locks
--       then for each write: its command, the number of its arguments, and these
-- Reply {1, the reply to each write}  {2, how many writes were executed, the server's words about the next one}
--       {0} one of the locks is gone  {-1} another owner holds one of them
-- Not idempotent because the writes are the caller's. So it is sent again only if the answer says that nothing was executed.
-- include value.lua
-- include batch.lua
local owner, units, locks = ARGV[1], ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Returns 1 if the owner holds the lock, 0 if the lock is gone, -1 if another owner holds it, or an error as a table.
local function held(lock)
  if units == '0' then
    local value = value_of(lock, redis.pcall)
    if failed(value) then return value end
    return not value and 0 or is_held_by(value, owner) and 1 or -1
  end
  local ends = redis.pcall('ZSCORE', lock, units .. ' ' .. owner)
  if failed(ends) then return ends end
  -- An expired lease may still be listed.
  return ends and tonumber(ends) > now and 1 or 0
end

for i = 1, locks do
  local is = held(KEYS[i])
  if failed(is) then
    -- A key of another type is not a lock.
    if not string.find(is.err, 'WRONGTYPE', 1, true) then return is end
    is = -1
  end
  if is < 1 then return {is} end
end

local replies, at = {1}, 4
for i = locks + 1, #KEYS do
  local last = at + 1 + tonumber(ARGV[at + 1])
  local reply = redis.pcall(ARGV[at], KEYS[i], unpack(ARGV, at + 2, last))
  if failed(reply) then
    local done = #replies - 1
    if done == 0 and is_of_the_server(reply) then return reply end
    return {2, done, reply.err}
  end
  replies[#replies + 1], at = reply, last + 1
end
return replies
