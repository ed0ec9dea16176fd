-- Lets the caller past a rate limiter, now or, if that is worth the wait, in its turn.
--
-- KEYS  1 a list: '<permits> <per µs> <µs when it was last added to>', and then the µs at which the last ones were let
--         past, or will be, the oldest first
-- ARGV  1 permits  2 per µs  3 how long a wait is worth it, µs
-- Reply {1, µs}  past it, once so much time has gone by
--       {0, µs}  not past it: so much time would have to go by
-- Not idempotent because nobody owns a place: repeated, it takes another, which errs on the side of fewer.
--
-- The sliding log: with `permits` places in a window, each comes no earlier than `per` after the one so many before
-- it, so no window of that length, wherever it begins, holds more. Times to come stand in the list as well as times
-- that were: who waits has its place, in the order of asking.
-- Callers with other figures share the log. It is kept for the largest of them, so that each is exact by its own.
local log, permits, per = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local most, longest, last_now = permits, per, now

local head = redis.call('LINDEX', log, 0)
if head then
  local others, theirs, added = string.match(head, '^(%d+) (%d+) (%d+)$')
  if not others then return redis.error_reply('WRONGTYPE a list that is no rate limiter has this name') end
  most, longest = math.max(permits, tonumber(others)), math.max(per, tonumber(theirs))
  local back = tonumber(added) - now
  if back > 0 then
    -- The server's clock was set back: as if no time had gone by since, which errs on the side of fewer.
    local times = redis.call('LRANGE', log, 1, -1)
    redis.call('LTRIM', log, 0, 0)
    for _, at in ipairs(times) do
      redis.call('RPUSH', log, string.format('%.0f', at - back))
    end
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
if wait > tonumber(ARGV[3]) then return {0, wait} end

head = string.format('%.0f %.0f %.0f', most, longest, now)
if places < 0 then redis.call('RPUSH', log, head) end
redis.call('RPUSH', log, string.format('%.0f', at))
-- The head takes the place of the time that is too old to matter.
if places >= most then redis.call('LPOP', log) end
redis.call('LSET', log, 0, head)
redis.call('PEXPIRE', log, string.format('%.0f', math.ceil((wait + longest) / 1000)))
return {1, wait}
