-- Shared: the record of the last fence that was reserved, in the second key of a lock, and the next fences from there.
--
-- A fence is the server's time in microseconds. If the last fence is not smaller than that, the next fence is one more.
-- So fences rise after all data is lost, because the time has gone on. They also rise after the server's clock is set
-- back, because the last fence is kept.
-- The record of the last fence expires `memory` ms after that fence or after the server's time, whichever is later.

-- Returns the last fence. `record` is the result of GET. Returns 0 if the record is no fence: a fence is a number, and
-- no later than the year 2255.
local function last_fence(record)
  local last = tonumber(record or 0)
  return last and last >= 0 and last < 9000000000000000 and last or 0
end

-- If `count` is '0', the lock has no fence: the record stays as it is, and the fence is 0. `time` is what TIME has replied
-- to this script, if the script has asked already.
--
-- Returns the first of the fences. Returns an error as a table, and never raises one, so that the caller can undo its
-- earlier writes.
local function next_fences(key, count, memory, time)
  if count == '0' then return 0 end
  time = time or redis.pcall('TIME')
  if time.err then return time end
  -- As text, because Lua would print a number of this size rounded.
  local now = time[1] .. string.sub('00000' .. time[2], -6)
  if count == '1' then
    local last = redis.pcall('SET', key, now, 'PX', memory, 'GET')
    if type(last) == 'table' then return last end
    last = last_fence(last)
    if last < tonumber(now) then return tonumber(now) end
    local set = redis.pcall('SET', key, string.format('%.0f', last + 1),
      'PX', memory + math.ceil((last + 1 - now) / 1000))
    if set.err then return set end
    return last + 1
  end
  local last = redis.pcall('GET', key)
  if type(last) == 'table' then return last end
  local first = math.max(last_fence(last) + 1, tonumber(now))
  local top = first + count - 1
  local set = redis.pcall('SET', key, string.format('%.0f', top),
    'PX', memory + math.ceil((top - now) / 1000))
  if set.err then return set end
  return first
end
