-- Writes the value of a leader, takes it back, or reads who holds the lock, and the value that it has written.
--
-- KEYS  1 a hash: the leader (`owner`), its `fence`, the `number` of its last write, its `value` unless that was taken back; and
--       `@` and a channel for each process that observes: when it last said so, ms by this server's clock  2 the lock, a mutex
-- ARGV  to read: 1 channel of the process if it observes, or ''
--       to write: 1 owner  2 fence  3 number, larger than that of the owner's earlier writes  4 value, none to take it back
-- Reply {the holder, ms left of its lease, then the number of its last write, its fence and its value if it has one}, or {}
--       1 written  0 the lock is gone  -1 another owner holds it
-- Idempotent because a late copy has a smaller number than the last write of its owner, and is ignored.
-- include value.lua
local record, lock = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- A leader writes again every few seconds, so that its value outlasts any leadership, and no leader of the past stays.
local KEPT_MS = 24 * 60 * 60 * 1000
-- How many processes are told of a change by a message, for how long after they last said so, and how often they say so.
local MOST_TOLD, TOLD_MS, SAID_MS = 64, 10000, 3000

local all, is = redis.call('HGETALL', record), {}
for i = 1, #all, 2 do is[all[i]] = all[i + 1] end
local value = value_of(lock, redis.call)

-- Returns how long ago this process last said that it observes, in ms.
local function silence(field)
  return math.abs(now - tonumber(is[field] or 0))
end

-- Sets fields. The time to live comes first too: a user who may not set it must leave no record that has none.
local function set(...)
  at_least(record, KEPT_MS)
  redis.call('HSET', record, ...)
  at_least(record, KEPT_MS)
end

if not ARGV[2] then
  local observer = '@' .. ARGV[1]
  if observer ~= '@' and silence(observer) > SAID_MS and (is[observer] or #all / 2 < MOST_TOLD + 4) then
    -- Without the right to write, or memory for it, a process still reads.
    pcall(set, observer, string.format('%.0f', now))
  end
  local owner = value and is_ours(value) and owner_in(value)
  if not owner or not is_held_by(value, owner) then return {} end
  local reply = {owner, redis.call('PTTL', lock)}
  if is.owner == owner then
    reply[3] = is.number
    if is.value then reply[4], reply[5] = is.fence, is.value end
  end
  return reply
end

local owner, fence, number, new = unpack(ARGV)
if not value then return 0 end
if not is_held_by(value, owner) then return -1 end
if is.owner == owner and tonumber(is.number) > tonumber(number) then return 1 end
set('owner', owner, 'fence', fence, 'number', number, unpack(new and {'value', new} or {}))
if not new then redis.call('HDEL', record, 'value') end
local message = string.format('leader %s.%s %s', fence, number, lock)
for field in pairs(is) do
  if string.sub(field, 1, 1) == '@' then
    if silence(field) > TOLD_MS then
      redis.call('HDEL', record, field)
    elseif is.owner ~= owner or is.value ~= new then
      -- Without the right to publish, they read it a second later.
      redis.pcall('PUBLISH', string.sub(field, 2), message)
    end
  end
end
return 1
