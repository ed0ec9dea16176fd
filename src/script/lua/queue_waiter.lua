-- Shared: whether a waiter is alive. queue.lua comes before.

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
