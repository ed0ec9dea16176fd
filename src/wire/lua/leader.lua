-- Writes the value of a leader, takes it back, or reads who holds the lock, and the value that it has written.
--
-- KEYS  1 a hash: the leader (`owner`), its `fence`, the `number` of its last write, its `value` unless that was taken back; and
--       the channels of the processes that observe, each with the time at which it last said so, ms by this server's clock
--       (`observers`)  2 the lock, a mutex
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
local MOST_TOLD, TOLD_MS, SAID_MS = 64, 15000, 5000

local function field(name)
  return redis.call('HGET', record, name)
end

-- Sets fields, and keeps the record for at least so long. PEXPIRE comes before HSET too, so that a user who may not use it
-- is refused before there is a record, which would never expire.
local function set(kept_ms, ...)
  at_least(record, kept_ms)
  redis.call('HSET', record, ...)
  at_least(record, kept_ms)
end

-- Returns the channels of the processes that observe, and for each channel how many ms ago it was last noted.
local function observers()
  local channels, silent = {}, {}
  for channel, at in string.gmatch(field('observers') or '', '(%S+) (%d+)') do
    local ms = math.abs(now - at)
    if ms <= TOLD_MS then
      channels[#channels + 1], silent[channel] = channel, ms
    end
  end
  return channels, silent
end

-- Notes that a process observes, in place of one that does no more.
local function observe(new)
  local channels, silent = observers()
  if (silent[new] or TOLD_MS) <= SAID_MS or not silent[new] and #channels >= MOST_TOLD then return end
  local all = string.format('%s %.0f', new, now)
  for _, channel in ipairs(channels) do
    if channel ~= new then all = string.format('%s %s %.0f', all, channel, now - silent[channel]) end
  end
  set(TOLD_MS, 'observers', all)
end

local held = value_of(lock, redis.call)
local last, last_value = field('owner'), field('value')

if not ARGV[2] then
  -- Without the right to write, a process still reads.
  if ARGV[1] ~= '' then pcall(observe, ARGV[1]) end
  local owner = held and is_ours(held) and owner_in(held)
  if not owner or not is_held_by(held, owner) then return {} end
  local reply = {owner, redis.call('PTTL', lock)}
  if last == owner then
    reply[3] = field('number')
    if last_value then reply[4], reply[5] = field('fence'), last_value end
  end
  return reply
end

local owner, fence, number, value = unpack(ARGV)
if not held then return 0 end
if not is_held_by(held, owner) then return -1 end
if last == owner and tonumber(field('number')) > tonumber(number) then return 1 end
set(KEPT_MS, 'owner', owner, 'fence', fence, 'number', number, unpack(value and {'value', value} or {}))
if not value then redis.call('HDEL', record, 'value') end
if last ~= owner or last_value ~= (value or false) then
  local message = string.format('leader %s.%s %s', fence, number, lock)
  -- Without the right to publish, they read it a second later.
  for _, channel in ipairs(observers()) do redis.pcall('PUBLISH', channel, message) end
end
return 1
