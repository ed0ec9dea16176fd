-- Shared: the record of the last fence that was reserved, in the second key of a lock.

-- Returns the last fence. `record` is the result of GET. Returns 0 if the record is no fence: a fence is a number, and
-- no later than the year 2255.
local function last_fence(record)
  local last = tonumber(record or 0)
  return last and last >= 0 and last < 9000000000000000 and last or 0
end

