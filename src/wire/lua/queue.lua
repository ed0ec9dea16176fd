-- Shared: the queue of the processes that wait for a lock, and whether a waiter may get its turn.
--
-- `queue` is a sorted set of owners, ordered by score.
-- `waiters` is a hash from owner to a record:
-- '<ms when last seen> <pickup window ms> <units>/<units of the lock> <channel>'.
-- After a hand-over, the lock waits for the pickup window until the owner takes that number of units.
-- The channel '' belongs to a process without a subscription, which polls often instead. If the waiter takes a grant by
-- message, ' <number of fences, 0 or 1> <nonce>' follows the channel. A field that begins with '=' belongs to no owner.
--
-- | a waiter that | is | and a script that chooses the next waiter |
-- | --- | --- | --- |
-- | has asked within its pickup window, and within its life | awake | gives it its turn |
-- | was silent for longer: its process hangs, or is gone | silent | passes it over: it keeps its place and its record |
-- | was silent for its life, or for longer than its pickup window and has no subscriber | gone | drops it |
--
-- So a waiter that only stalled keeps its place, and all waiters that hang cost the others one pickup window together. One
-- script passes over at most MOST_PASSED waiters. If it finds none that is awake, nobody is chosen.
-- include value.lua
local MOST_PASSED = 64

-- `life` is how many ms a waiter stays in the queue after it was last seen. `counts_subscribers` is '1' if a PUBLISH that
-- reached no subscriber proves that the process is gone.
local queue, waiters, life, counts_subscribers

-- The server's time, read once a script.
local clock
local function server_time()
  clock = clock or redis.call('TIME')
  return clock
end

-- The first score of owners at the front of the queue; their scores end below zero. The score of another owner is the
-- server's time in microseconds when the owner joined.
local FRONT = -1000000000

-- Puts `owner` at the end of the queue. With `in_front` it comes before all others, but behind earlier ones at the
-- front. An owner in the queue keeps its place, unless it now comes to the front. Its record is written anew.
local function join(owner, pickup, units, channel, in_front)
  local score = in_front and redis.call('ZSCORE', queue, owner)
  local time = server_time()
  local micros = string.sub('00000' .. time[2], -6)
  local record = string.format('%s%s %s %s %s', time[1], string.sub(micros, 1, 3), pickup, units, channel)
  local is_new_record = redis.call('HSET', waiters, owner, record) == 1
  local added
  if not in_front then
    -- LT keeps the earlier score. After the server's clock was set back, the next poll of a waiter lowers its score, so
    -- that newer waiters do not come before it.
    added = redis.pcall('ZADD', queue, 'LT', time[1] .. micros, owner)
  elseif not (score and tonumber(score) < 0) then
    local last = redis.call('ZRANGE', queue, '(0', '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
    added = redis.pcall('ZADD', queue, (last or FRONT) + 1, owner)
  end
  if type(added) == 'table' then
    -- No waiter has a record without a score. The same call again ends the script with its error.
    redis.call('HDEL', waiters, owner)
    redis.call('ZADD', queue, 'NX', 0, owner)
  end
  -- Both keys live for a while after the last waiter was seen. They get a TTL together, so a look at one of them shows
  -- whether both live long enough. Most often they do. `waiters` may live longer. It may be new although `queue` is not:
  -- it was evicted, or all its fields were deleted while the user might not change `queue`.
  local lives = tonumber(life)
  if redis.call('PTTL', queue) < lives or is_new_record and redis.call('PTTL', waiters) < lives then
    redis.call('PEXPIRE', queue, 2 * life)
    redis.call('PEXPIRE', waiters, 2 * life)
  end
end

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
