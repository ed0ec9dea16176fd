-- Shared: the next `count` fences of a lock; the last fence given is kept at `key`.
--
-- A fence is the server's time in microseconds, or one more than the last where that is not larger: it
-- survives the loss of all data, since time went on, and a clock set back, since the last is kept. The
-- record outlives the later of the two by `memory` ms, so that no key lives for ever.

-- The last fence, of what GET says of its record; 0 where that can be none, as it is later than the year 2255.
local function last_fence(record)
  local last = tonumber(record or 0)
  return last and last >= 0 and last < 9000000000000000 and last or 0
end

-- Returns the first fence, or an error as a table, and never raises one: what the caller did before must be undone.
local function next_fences(key, count, memory)
  local time = redis.pcall('TIME')
  if time.err then return time end
  -- As text: a number of this size would print rounded.
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

