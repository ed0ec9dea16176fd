-- Shared: whether a waiter may get its turn. queue.lua comes before.
--
-- | a waiter that | is | and a script that chooses the next waiter |
-- | --- | --- | --- |
-- | has asked within its pickup window | awake | gives it its turn |
-- | was silent for longer: its process hangs, or is gone | silent | passes it over: it keeps its place and its record |
-- | was silent for its life, or for longer than its pickup window and has no subscriber | gone | drops it |
--
-- So a waiter that only stalled keeps its place, and all waiters that hang cost the others one pickup window together. One
-- script passes over at most MOST_PASSED waiters. If it finds none that is awake, nobody is chosen.
local MOST_PASSED = 64

local function now_ms()
  local time = server_time()
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Returns the parts of a waiter's record, or nil if there is no record. The parts are: the time of its last request, its
-- pickup window, its units, the units of the lock, and its channel. For a grant by message, the number of fences and the
-- nonce follow. Otherwise two empty texts follow.
local function parts_of(record)
  return string.match(record or '', '^(%d+) (%d+) (%d+)/(%d+) (%S*) ?(%d*) ?(%S*)$')
end

-- Returns whether a message on a channel may reach a subscriber. If an access list forbids the question, it may.
local function may_have_subscriber(channel)
  if channel == '' or counts_subscribers ~= '1' then return true end
  local count = redis.pcall('PUBSUB', 'NUMSUB', channel)
  return count.err ~= nil or count[2] > 0
end

-- Returns the state of a waiter by its record: the table at the top.
local function state_of(seen, pickup, channel)
  local silence = seen and math.abs(now_ms() - seen)
  if not seen or silence > tonumber(life) then return 'gone' end
  if silence < tonumber(pickup) then return 'awake' end
  return may_have_subscriber(channel) and 'silent' or 'gone'
end
