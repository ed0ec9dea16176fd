-- Shared: the value of a mutex's key: its owner, and a mark where others wait.

-- Marks a mutex's value: "look into the queue before you go". Only ever put on values of our own making.
local MARK = '!'

-- Stands at the end of an owner whose lock is kept after its release (min_hold), before a mark. No label has a MARK in it,
-- so no owner ends like this by itself.
local KEPT = MARK .. '~'

-- How much of it is read, bytes. An owner has fewer, with its mark too; so a value of this length is another client's, and
-- nobody needs the rest of it.
local MOST_OF_VALUE = 256

-- Returns the value or the beginning of a long one, or false without a key. `call` is redis.call or redis.pcall; by
-- pcall it returns an error as a table.
local function value_of(lock, call)
  local value = call('GETRANGE', lock, 0, MOST_OF_VALUE - 1)
  if value ~= '' then return value end
  local exists = call('EXISTS', lock)
  if exists == 0 then return false end
  return exists == 1 and value or exists
end

-- Whether a mutex's value is of our making. Another client's is never marked: its release compares the whole value.
local function is_ours(value)
  return string.sub(value, 1, 4) == 'lh1:' and #value < MOST_OF_VALUE
end

local function is_marked(value)
  return is_ours(value) and string.sub(value, -1) == MARK
end

-- The owner in a mutex's value, or of a share: without a mark, and without KEPT.
local function owner_in(value)
  if is_marked(value) then value = string.sub(value, 1, -2) end
  if is_ours(value) and string.sub(value, -#KEPT) == KEPT then value = string.sub(value, 1, -#KEPT - 1) end
  return value
end
