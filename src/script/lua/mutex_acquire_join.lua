-- Joins the queue of a mutex whose holder knows that others wait. mutex_acquire_free.lua comes before; value.lua,
-- queue.lua, gap.lua, recall.lua and mutex_acquire.lua follow.
-- KEYS, ARGV and reply as in mutex_acquire_free.lua.
--
-- This part does what `join` in queue.lua does for an owner at the end of the queue. It stands before the functions of the
-- other files, because Redis defines a script's functions at each run. In any other case mutex_acquire.lua goes on, and
-- also after an error, so that it repeats the command and handles its error. An error of PTTL or PEXPIRE ends the script.
repeat
  if ARGV[6] == '-' then break end
  local value = redis.pcall('GETRANGE', KEYS[1], 0, 255)
  if type(value) ~= 'string' or #value == 256 or string.sub(value, 1, 4) ~= 'lh1:' then break end
  -- The marks of value.lua. A holder whose UUID has version 8 may have to be recalled: see recall.lua.
  local holder = string.sub(value, 1, -2)
  if string.sub(value, -1) ~= '!' or string.sub(holder, -1) == '~' or string.sub(value, 19, 19) == '8' then break end
  if holder == ARGV[1] then break end
  local time = redis.pcall('TIME')
  if time.err then break end
  local micros = string.sub('00000' .. time[2], -6)
  local record = string.format('%s%s %s 1/1 %s', time[1], string.sub(micros, 1, 3), ARGV[7], ARGV[6])
  local written = redis.pcall('HSET', KEYS[4], ARGV[1], record)
  local added = type(written) == 'number' and redis.pcall('ZADD', KEYS[3], 'LT', time[1] .. micros, ARGV[1])
  if type(added) ~= 'number' then break end
  if redis.call('PTTL', KEYS[3]) < tonumber(ARGV[8]) then
    redis.call('PEXPIRE', KEYS[3], 2 * ARGV[8])
    redis.call('PEXPIRE', KEYS[4], 2 * ARGV[8])
  end
  return {0, redis.call('PTTL', KEYS[1]), holder}
until true
