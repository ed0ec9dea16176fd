-- Shared: reserves the fences of a lock on one node of a quorum.
--
-- 1. The client proposes its clock as the first fence, to all nodes.
-- 2. Each node reserves fences from the clock on, or from the fence after its record on. It answers the first of them.
-- 3. The client takes the largest answer of the nodes that it counts.
-- 4. Each of these nodes raises its record to the end of the client's fences.
--
-- If the clocks agree, all answers of step 2 are equal, and step 4 is not needed.
-- A node follows the client's clock only up to LEEWAY before or after its own time. So a wrong clock does little harm.
-- include fence.lua

-- How far the client's clock, and the end of the reserved fences, may be from the node's time, µs.
local LEEWAY = 1000000

-- Returns for how many ms a record stays whose last fence is `last`: for `memory` ms after that fence or after `now`,
-- whichever is later.
local function life_of(last, memory, now)
  return last > now and memory + math.ceil((last - now) / 1000) or memory
end

-- Reserves the next `count` fences, or fewer if they would end later than LEEWAY from now. `clock` is the client's
-- time, µs. Returns the first and the last of the fences. Returns an error as a table, and never raises one, as in
-- fence.lua. If `count` is '0', the lock has no fence: the record stays as it is, and both numbers are 0.
local function reserve(key, count, memory, clock)
  if count == '0' then return 0, 0 end
  local time = redis.pcall('TIME')
  if time.err then return time end
  local now, proposed = time[1] * 1000000 + time[2], tonumber(clock)
  local first = math.max(now - LEEWAY, math.min(proposed, now + LEEWAY))
  local last = math.min(first + count - 1, now + LEEWAY)
  -- Most often the record is lower than that. Redis takes long to write a number of this size as text, so the client's
  -- own text is used if it is the same.
  local text = last == proposed and clock or last
  local record = redis.pcall('SET', key, text, 'PX', life_of(last, memory, now), 'GET')
  if type(record) == 'table' then return record end
  local before = last_fence(record)
  if before < first then return first, last end
  first = before + 1
  last = math.max(first, math.min(first + count - 1, now + LEEWAY))
  local set = redis.pcall('SET', key, last, 'PX', life_of(last, memory, now))
  if set.err then return set end
  return first, last
end

-- Raises a record to `last`, unless it is higher. `now` is the node's time, µs. Returns the record then, or an error as a
-- table.
local function raise(key, last, memory, now)
  local record = redis.pcall('GET', key)
  if type(record) == 'table' then return record end
  local before = last_fence(record)
  if before >= last then return before end
  local set = redis.pcall('SET', key, last, 'PX', life_of(last, memory, now))
  return set.err and set or last
end
