-- Records that a fire of a job was done, or reads the last record.
--
-- KEYS  1 the lock  2 a hash: the last fire that was done (`fire`, µs since 1970), who did it (`owner`) and when (`at`, µs by
--       this server's clock), and the first fire of a job that repeats (`first`)
-- ARGV  1 '' to read  'every' to read, and to make this moment the first fire if there is none
--       or the fire that was done, µs since 1970
--       2 owner  3 ms for which the record is kept
-- Reply {fire, owner, at, first, the server's time}: '' for what is not there
--       1 the fire is recorded  0 the lock is gone  -1 another owner holds it
-- Idempotent because the record has the owner: a repeat finds itself there, even if the lock is released. A record never goes
-- back to an earlier fire.
-- include value.lua
local lock, record = KEYS[1], KEYS[2]
local fire, owner, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])

local function recorded(field)
  return redis.call('HGET', record, field) or ''
end

local function write(...)
  redis.call('HSET', record, ...)
  at_least(record, keep_ms)
end

if fire == '' then return {recorded('fire'), recorded('owner'), recorded('at'), recorded('first'), now} end
local last = tonumber(recorded('fire'))
if last and last >= (tonumber(fire) or math.huge) and recorded('owner') == owner then
  -- It writes, so that a WAIT that follows waits for the record.
  at_least(record, keep_ms)
  return 1
end
local value = value_of(lock, redis.call)
if not value then return 0 end
if not is_held_by(value, owner) then return -1 end
if fire == 'every' then
  if recorded('first') == '' then write('first', now) end
  return {recorded('fire'), recorded('owner'), recorded('at'), recorded('first'), now}
end
if not last or last < tonumber(fire) then write('fire', fire, 'owner', owner, 'at', now) end
return 1
