-- Lets the caller past a rate limiter, now or, if that is worth the wait, in its turn.
--
-- KEYS  1 a list: the µs at which the last ones were let past, or will be, the oldest first
-- ARGV  1 permits  2 per µs  3 how long a wait is worth it, µs
-- Reply {1, µs}  past it, once so much time has gone by
--       {0, µs}  not past it: so much time would have to go by
-- Not idempotent because nobody owns a place: repeated, it takes another, which errs on the side of fewer.
--
-- The sliding log: with `permits` places in a window, each comes no earlier than `per` after the one so many before
-- it, so no window of that length, wherever it begins, holds more. Times to come stand in the list as well as times
-- that were: who waits has its place, in the order of asking.
local permits, per = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local before = redis.call('LINDEX', KEYS[1], -permits)
local at = now
if before then at = math.max(now, before + per) end
local wait = at - now
if wait > tonumber(ARGV[3]) then return {0, wait} end
redis.call('RPUSH', KEYS[1], string.format('%.0f', at))
redis.call('LTRIM', KEYS[1], -permits, -1)
local ttl = math.ceil((wait + per) / 1000)
if redis.call('PTTL', KEYS[1]) < ttl then redis.call('PEXPIRE', KEYS[1], string.format('%.0f', ttl)) end
return {1, wait}
