-- Shared: the value of a mutex's key: its owner, and a mark if others wait.

-- Marks a mutex's value: look into the queue before the release. Only values of this crate are marked.
local MARK = '!'

-- Stands behind the owner of a lock that is kept after its release (min_hold), and before a mark. No label contains
-- MARK, so no owner ends in KEPT.
local KEPT = MARK .. '~'

-- How many bytes of a value the scripts read. An owner is shorter, even with its mark. So a value of this length is
-- another client's, and no script needs the rest of it.
local MOST_OF_VALUE = 512

-- Returns the value, or the beginning of a long one. Returns false if there is no key. `call` is redis.call or
-- redis.pcall; with pcall it returns an error as a table.
local function value_of(lock, call)
  local value = call('GETRANGE', lock, 0, MOST_OF_VALUE - 1)
  if value ~= '' then return value end
  local exists = call('EXISTS', lock)
  if exists == 0 then return false end
  return exists == 1 and value or exists
end

-- Returns whether this crate wrote the value. Another client's value is never marked, because that client's release
-- compares the whole value.
local function is_ours(value)
  return string.sub(value, 1, 4) == 'lh1:' and #value < MOST_OF_VALUE
end

local function is_marked(value)
  return is_ours(value) and string.sub(value, -1) == MARK
end

-- Returns the owner in a value, without a mark and without KEPT.
local function owner_in(value)
  if is_marked(value) then value = string.sub(value, 1, -2) end
  if is_ours(value) and string.sub(value, -#KEPT) == KEPT then value = string.sub(value, 1, -#KEPT - 1) end
  return value
end

-- Returns whether this owner holds the lock with this value.
local function is_held_by(value, owner)
  return value == owner or value == owner .. MARK
end

-- Marks a value, because others wait.
local function mark(lock, value)
  if value and is_ours(value) and not is_marked(value) then redis.pcall('APPEND', lock, MARK) end
end

-- Raises the time to live of a key to `ttl` ms, and never shortens it. PEXPIRE and not SET, because SET would remove the
-- mark. It always writes, so that a WAIT that follows waits for this write: without a fence there may be no other.
local function at_least(lock, ttl)
  redis.call('PEXPIRE', lock, string.format('%.0f', math.max(redis.call('PTTL', lock), ttl)))
end
