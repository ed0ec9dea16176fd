-- Releases a mutex: hands it to the first live waiter, or frees it. record.lua, fence.lua,
-- value.lua, queue.lua and queue_waiter.lua come before; queue_next.lua, gap.lua and mutex_hand_over.lua follow.
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
-- other case mutex_hand_over.lua goes on. Until then this part has at most reserved a fence, and taken the first waiter out
-- of the queue.
local lock, owner = KEYS[1], ARGV[1]
queue, waiters, life, counts_subscribers = KEYS[3], KEYS[4], ARGV[4], ARGV[5]

local value = value_of(lock, redis.pcall)
local is_holder = value == owner or value == owner .. MARK

repeat
  if not is_holder or ARGV[2] ~= '' or ARGV[6] == '1' or ARGV[7] ~= '0' then break end
  local is_known, now = pcall(now_ms)
  local first = is_known and redis.pcall('ZPOPMIN', queue)
  if not is_known or not first[1] then break end
  popped = first
  -- A score below zero is at the front of the queue: `pop_next` decides which owner is next then.
  local record = tonumber(first[2]) > 0 and redis.pcall('HGET', waiters, first[1])
  local seen, pickup, _, _, channel, fences, nonce = parts_of(type(record) == 'string' and record)
  if not seen or nonce == '' or math.abs(now - seen) > math.min(life, pickup) then break end
  local fence = may_have_subscriber(channel) and next_fences(KEYS[2], fences, ARGV[9], server_time())
  if type(fence) ~= 'number' or type(redis.pcall('HDEL', waiters, first[1], '=front')) ~= 'number' then break end
  if redis.pcall('SET', lock, first[1] .. MARK, 'PX', pickup).err then
    redis.call('DEL', lock)
    return 1
  end
  redis.pcall('PUBLISH', channel, string.format('%s %s %.0f', first[1], nonce, fence))
  return 3
until true
