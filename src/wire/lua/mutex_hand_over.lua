-- Releases a mutex: hands it to the first live waiter, or frees it.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 owner  2 last fence used  3 last of its block (both '' if there are none to give back)  4 life of a waiter ms
--       5 '1' if PUBLISH counts all subscribers  6 '1' if the owner may itself be in the queue (a withdrawal)  7 gap ms
--       8 quantum ms, see gap.lua  9 fence memory ms
-- Reply 1 released  3 released and handed to a waiter  0 the key is gone  -1 another owner holds it
-- Idempotent because it acts only while this owner holds the lock, and ends that.
--
-- Most often the first waiter is awake, and takes a grant by message. This part does for it what `hand_over` in
-- queue_next.lua does. It stands before most functions, because Redis defines a script's functions at each run. In any
-- other case the rest goes on. Until then this part has at most reserved a fence, unless the server rejects a command.
-- include fence.lua
-- include queue.lua
local lock, owner = KEYS[1], ARGV[1]
queue, waiters, life, counts_subscribers = KEYS[3], KEYS[4], ARGV[4], ARGV[5]

local value = value_of(lock, redis.pcall)
local is_holder = is_held_by(value, owner)

repeat
  if not is_holder or ARGV[2] ~= '' or ARGV[6] == '1' or ARGV[7] ~= '0' then break end
  local is_known, now = pcall(now_ms)
  local first = is_known and redis.pcall('ZRANGE', queue, 0, 0, 'WITHSCORES')
  if not is_known or not first[1] then break end
  -- A score below zero is at the front of the queue: `next_waiter` decides which owner is next then.
  local record = tonumber(first[2]) > 0 and redis.pcall('HGET', waiters, first[1])
  local seen, pickup, _, _, channel, fences, nonce = parts_of(type(record) == 'string' and record)
  if not seen or nonce == '' or math.abs(now - seen) > math.min(life, pickup) then break end
  local fence = may_have_subscriber(channel) and next_fences(KEYS[2], fences, ARGV[9], server_time())
  if type(fence) ~= 'number' or type(redis.pcall('HDEL', waiters, first[1], '=front')) ~= 'number' then break end
  if type(redis.pcall('ZREM', queue, first[1])) ~= 'number' then break end
  if redis.pcall('SET', lock, first[1] .. MARK, 'PX', pickup).err then
    redis.call('DEL', lock)
    return 1
  end
  redis.pcall('PUBLISH', channel, string.format('%s %s %.0f', first[1], nonce, fence))
  return 3
until true

-- include gap.lua
if ARGV[6] == '1' then
  local _, _, refused = ignore_wrong_type(leave, owner)
  if refused then return refused end
end
local function end_lease()
  -- Without waiters the mutex becomes free without a gap.
  local is_contended = ARGV[7] ~= '0' and redis.call('ZCARD', queue) > 0
  if is_contended and leave_free(lock, owner, ARGV[7], ARGV[8]) then
    -- That waiter asks at once, and takes the mutex when the gap ends.
    wake_head()
    return nil
  end
  local function reserve(fences) return next_fences(KEYS[2], fences, ARGV[9], server_time()) end
  return hand_over(lock, reserve)
end

if is_holder then
  give_back(KEYS[2], ARGV[2], ARGV[3])
  local ok, given, refused = ignore_wrong_type(end_lease)
  if refused then return refused end
  -- A companion is a key of another type, so there is no waiter to hand the lock to.
  if not ok then redis.call('DEL', lock) end
  return ok and given and 3 or 1
end
if value then return type(value) == 'table' and value or -1 end
if ARGV[6] == '1' then
  -- In a gap, this owner may be the only one that was woken. The head of the queue now asks in its place.
  local _, _, refused = ignore_wrong_type(wake_head)
  if refused then return refused end
end
return 0
