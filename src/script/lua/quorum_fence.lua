-- Shared: reserves the fences of a lock on one node of a quorum, and raises them. fence.lua comes before.
--
-- 1. The client proposes its clock as the first fence, to all nodes.
-- 2. Each node reserves fences from the clock on, or from the fence after its record on. It answers the first of them.
-- 3. The client takes the largest answer of the nodes that it counts.
-- 4. Each of these nodes raises its record to the end of the client's fences.
--
-- If the clocks agree, all answers of step 2 are equal, and step 4 is not needed.
-- A node follows the client's clock only up to LEEWAY before or after its own time. So a wrong clock does little harm.

-- How far the client's clock, and the end of the reserved fences, may be from the node's time, µs.
local LEEWAY = 1000000

-- Returns the node's time, µs, and the last fence of the record. Returns an error as a table.
local function now_and_last(key)
  local time = redis.pcall('TIME')
  if time.err then return time end
  local record = redis.pcall('GET', key)
  if type(record) == 'table' then return record end
  return time[1] * 1000000 + time[2], last_fence(record)
end

-- Makes `last` the record. The record expires `memory` ms after that fence or after `now`, whichever is later. Returns
-- an error as a table, or nil.
local function write_record(key, last, memory, now)
  local ahead = math.max(0, math.ceil((last - now) / 1000))
  local set = redis.pcall('SET', key, string.format('%.0f', last), 'PX', memory + ahead)
  if set.err then return set end
end

-- Reserves the next `count` fences, or fewer if they would end later than LEEWAY from now. `clock` is the client's
-- time, µs. Returns the first and the last of the fences. Returns an error as a table, and never raises one, as in
-- fence.lua.
local function reserve(key, count, memory, clock)
  local now, before = now_and_last(key)
  if type(now) == 'table' then return now end
  local clamped = math.max(now - LEEWAY, math.min(tonumber(clock), now + LEEWAY))
  local first = math.max(before + 1, clamped)
  local last = math.max(first, math.min(first + count - 1, now + LEEWAY))
  local refused = write_record(key, last, memory, now)
  if refused then return refused end
  return first, last
end

-- Returns the fences of a reader, which reserves none: its first and last fence are the record. If Redis has forgotten
-- the record, it reserves one fence. That is between the last writer's and the next writer's. Returns an error as a
-- table.
local function fences_of_reader(key, memory, clock)
  local now, last = now_and_last(key)
  if type(now) == 'table' then return now end
  if last > 0 then return last, last end
  return reserve(key, 1, memory, clock)
end

-- Raises the record to the end of the `count` fences from `first` on. That end is at most LEEWAY from now, but at least
-- `first`. Returns the record, which may have been higher. Returns an error as a table.
local function raise(key, first, count, memory)
  local now, before = now_and_last(key)
  if type(now) == 'table' then return now end
  first = tonumber(first)
  local last = math.min(first + count - 1, math.max(first, now + LEEWAY))
  if before >= last then return before end
  return write_record(key, last, memory, now) or last
end
