-- Admits the caller to a rate limiter, now or, if the caller is willing to wait as long, at a later time.
--
-- KEYS  1 a list: '<permits> <per µs> <last reading of the log's clock> <µs that this clock is ahead of the server's>',
--         and then the µs at which the last callers were admitted, or will be, the oldest first
-- ARGV  1 permits  2 per µs  3 the longest wait that the caller accepts, µs
-- Reply {1, µs}  admitted, once this time has gone by
--       {0, µs}  not admitted: the wait would be this long
-- Not idempotent because nobody owns a place: repeated, it takes another, which errs on the side of fewer.
--
-- The sliding log: with `permits` places in a window, each comes no earlier than `per` after the one `permits` before
-- it, so no window of that length, wherever it begins, holds more. The list holds future times too: a caller that waits
-- has its place, in the order of asking.
-- Callers with other figures share the log. It is kept for the largest of them, so that each is exact by its own.
-- The log's clock never goes back. If the server's clock is set back, the log's clock gets ahead of it by that much, as
-- if no time had gone by, which errs on the side of fewer. This is written down once, by a refused call too.
local log, permits, per = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local most, longest, ahead, was_set_back = permits, per, 0, false

local head = redis.call('LINDEX', log, 0)
if head then
  local others, theirs, last, known = string.match(head, '^(%d+) (%d+) (%d+) ?(%d*)$')
  if not others then return redis.error_reply('WRONGTYPE a list that is no rate limiter has this name') end
  others, theirs, last, ahead = tonumber(others), tonumber(theirs), tonumber(last), tonumber(known) or 0
  most, longest = math.max(permits, others), math.max(per, theirs)
  now = now + ahead
  if last > now then
    ahead, now, was_set_back = ahead + last - now, last, true
    head = string.format('%.0f %.0f %.0f %.0f', others, theirs, now, ahead)
  end
end

local places = redis.call('LLEN', log) - 1
local at = now
if places > 0 then
  -- Nobody is overtaken.
  at = math.max(at, tonumber(redis.call('LINDEX', log, -1)))
end
if places >= permits then
  at = math.max(at, redis.call('LINDEX', log, -permits) + per)
end
local wait = at - now
if wait > tonumber(ARGV[3]) then
  if was_set_back then redis.call('LSET', log, 0, head) end
  return {0, wait}
end

-- The script asks first for everything that the server may refuse, and in this order: once a script has written,
-- full memory refuses nothing. None of these changes the log, but for its head and its end.
head = string.format('%.0f %.0f %.0f %.0f', most, longest, now, ahead)
local life = string.format('%.0f', math.ceil((wait + longest) / 1000))
local set = redis.pcall('LSET', log, 0, head)
if set.err and not (places < 0 and string.find(set.err, 'no such key', 1, true)) then return set end
redis.call('PEXPIRE', log, life)
-- Redis before 7.2 reads the clock again at a PEXPIRE, and deletes the log if its time has just ended.
if redis.call('LLEN', log) == 0 then places = -1 end
at = string.format('%.0f', at)
if places < 0 then
  redis.call('RPUSH', log, head, at)
  redis.call('PEXPIRE', log, life)
  return {1, wait}
end
if places >= most then redis.call('LPOP', log, 0) end
redis.call('RPUSH', log, at)
if places >= most then
  -- The head takes the place of the time that is too old to matter.
  redis.call('LPOP', log)
  redis.call('LSET', log, 0, head)
end
return {1, wait}
