-- Records that a fire of a job was done, or reads the last record.
--
-- KEYS  1 a hash: the last fire that was done (`fire`, µs since 1970), who did it (`owner`) and when (`at`, µs by this
--       server's clock)  2 the lock; not to read
-- ARGV  none to read  1 the fire that was done, µs since 1970  2 owner  3 ms for which the record is kept
-- Reply {fire, owner, at, the server's time}: '' for what is not there
--       1 the fire is recorded  0 the lock is gone  -1 another owner holds it
-- Idempotent because the record has the owner: a repeat finds itself there, even if the lock is released. A record never goes
-- back to an earlier fire.
-- include value.lua
local record, lock = KEYS[1], KEYS[2]
local fire, owner, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])

local function recorded(field)
  return redis.call('HGET', record, field) or ''
end

if not fire then return {recorded('fire'), recorded('owner'), recorded('at'), now} end
local is_done = (tonumber(recorded('fire')) or -1) >= tonumber(fire)
if not is_done or recorded('owner') ~= owner then
  local value = value_of(lock, redis.call)
  if not value then return 0 end
  if not is_held_by(value, owner) then return -1 end
end
-- First without the record: a user who may not set its end must leave none that has no end.
at_least(record, keep_ms)
if not is_done then redis.call('HSET', record, 'fire', fire, 'owner', owner, 'at', now) end
-- A repeat writes too, so that a WAIT that follows waits for the record.
at_least(record, keep_ms)
return 1
