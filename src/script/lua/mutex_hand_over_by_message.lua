-- Releases a mutex: hands it to the first live waiter, or frees it. record.lua and fence.lua come before; value.lua,
-- queue.lua, gap.lua and mutex_hand_over.lua follow.
--
-- KEYS  1 lock  2 fence  3 queue  4 waiters
-- ARGV  1 owner  2 last fence used  3 last of its block (both '' if there are none to give back)  4 life of a waiter ms
--       5 '1' if PUBLISH counts all subscribers  6 '1' if the owner may itself be in the queue (a withdrawal)  7 gap ms
--       8 quantum ms, see gap.lua  9 fence memory ms
-- Reply 1 released  3 released and handed to a waiter  0 the key is gone  -1 another owner holds it
-- Idempotent because it acts only while this owner holds the lock, and ends that.
--
-- Most often the first waiter is alive, and takes a grant by message. This part does for it what `hand_over` in queue.lua
-- does. It stands before the functions of the other files, because Redis defines a script's functions at each run, which
-- takes a third of the time of a hand-over. In any other case mutex_hand_over.lua goes on. Until then this part has at most
-- reserved a fence, and taken the first waiter out of the queue. It leaves that waiter in ARGV.popped for `pop_next` in
-- queue.lua. mutex_hand_over.lua calls `pop_next` in each case in which this part has taken a waiter out. The field is in
-- ARGV, because scripts without this part also have queue.lua.
repeat
  if ARGV[2] ~= '' or ARGV[6] == '1' or ARGV[7] ~= '0' then break end
  local value = redis.pcall('GETRANGE', KEYS[1], 0, 255)
  if value ~= ARGV[1] and value ~= ARGV[1] .. '!' then break end
  local time = redis.pcall('TIME')
  if time.err then break end
  local popped = redis.pcall('ZPOPMIN', KEYS[3])
  local head, ticket = popped[1], popped[2]
  if not head then break end
  -- A ticket below zero is at the front of the queue: `pop_next` decides which owner is next then.
  local record = tonumber(ticket) > 0 and redis.pcall('HGET', KEYS[4], head)
  local seen, pickup, channel, fences, nonce
  if type(record) == 'string' then
    seen, pickup, channel, fences, nonce = string.match(record, '^(%d+) (%d+) 1/1 (%S+) (%d+) (%S+)$')
  end
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  if seen and math.abs(now - seen) <= tonumber(ARGV[4]) then
    local listens = ARGV[5] ~= '1' or redis.pcall('PUBSUB', 'NUMSUB', channel)
    local fence = (listens == true or listens.err or listens[2] > 0) and next_fences(KEYS[2], fences, ARGV[9], time)
    local deleted = type(fence) == 'number' and redis.pcall('HDEL', KEYS[4], head, '=front')
    if type(deleted) == 'number' then
      local set = redis.pcall('SET', KEYS[1], head .. '!', 'PX', pickup)
      if set.err then
        redis.call('DEL', KEYS[1])
        return 1
      end
      redis.pcall('PUBLISH', channel, string.format('%s %s %.0f', head, nonce, fence))
      return 3
    end
  end
  ARGV.popped = popped
until true
