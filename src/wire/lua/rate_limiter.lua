-- Admits the caller to a rate limiter: now, or later if the caller accepts such a wait.
--
-- KEYS  1 a list: '<permits> <per µs> <last reading of the log's clock> <µs that this clock is ahead of the server's>',
--         and then the µs at which callers were admitted, or will be, the oldest first
-- ARGV  1 permits  2 per µs  3 the longest wait that the caller accepts, µs  4 how many places the caller takes
-- Reply {1, µs}  admitted, after this time
--       {0, µs}  not admitted: the wait would be this long
-- Not idempotent because an admission has no owner: a repeat books another one, so fewer callers are admitted, never
-- more.
--
-- The list is a sliding log. Each admission comes at least `per` after the one `permits` before it. So no window of
-- that length has more than `permits` admissions, wherever it begins. A caller that takes several is in the log as often.
-- The log also holds future times: a caller that waits has its admission booked, in the order of the requests.
-- Callers with other figures share the log. It is kept for the largest figures, so that it is exact for each caller.
-- The log's clock never goes back. If the server's clock is set back, the log's clock gets ahead of it by that much, as
-- if no time had passed. So fewer callers are admitted, never more. A refused call writes this down too.
local log, permits, per, taken = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local max_permits, max_per, ahead, was_set_back = permits, per, 0, false

local head = redis.call('LINDEX', log, 0)
if head then
  local stored_permits, stored_per, last, stored_ahead = string.match(head, '^(%d+) (%d+) (%d+) ?(%d*)$')
  if not stored_permits then return redis.error_reply('WRONGTYPE a list that is no rate limiter has this name') end
  stored_permits, stored_per = tonumber(stored_permits), tonumber(stored_per)
  last, ahead = tonumber(last), tonumber(stored_ahead) or 0
  max_permits, max_per = math.max(permits, stored_permits), math.max(per, stored_per)
  now = now + ahead
  if last > now then
    ahead, now, was_set_back = ahead + last - now, last, true
    head = string.format('%.0f %.0f %.0f %.0f', stored_permits, stored_per, now, ahead)
  end
end

local booked = redis.call('LLEN', log) - 1
local admitted_at = now
if booked > 0 then
  -- A caller is not admitted before an earlier one.
  admitted_at = math.max(admitted_at, tonumber(redis.call('LINDEX', log, -1)))
end
-- The last of those that the caller takes needs the longest wait.
local before = permits - taken + 1
if booked >= before then
  admitted_at = math.max(admitted_at, redis.call('LINDEX', log, -before) + per)
end
local wait = admitted_at - now
if wait > tonumber(ARGV[3]) then
  if was_set_back then redis.call('LSET', log, 0, head) end
  return {0, wait}
end

-- The commands that the server may reject come first, and in this order: after a script's first write Redis rejects no
-- other, even if memory is full. These commands change only the log's head and its time to live.
head = string.format('%.0f %.0f %.0f %.0f', max_permits, max_per, now, ahead)
local life = string.format('%.0f', math.ceil((wait + max_per) / 1000))
local set = redis.pcall('LSET', log, 0, head)
if set.err and not (booked < 0 and string.find(set.err, 'no such key', 1, true)) then return set end
redis.call('PEXPIRE', log, life)
-- Redis before 7.2 reads the clock again at a PEXPIRE. If the log's time has just ended, it deletes the log.
if redis.call('LLEN', log) == 0 then booked = -1 end
admitted_at = string.format('%.0f', admitted_at)
local over = math.max(booked, 0) + taken - max_permits
if booked < 0 then
  redis.call('RPUSH', log, head)
elseif over > 0 then
  -- Takes nothing: if this user may not take, nothing is booked.
  redis.call('LPOP', log, 0)
end
for _ = 1, taken do redis.call('RPUSH', log, admitted_at) end
-- A new log gets its end last, because the server may delete it then.
if booked < 0 then redis.call('PEXPIRE', log, life) end
-- No window includes the oldest times any more. The head replaces the last of them.
for _ = 1, over do redis.call('LPOP', log) end
if over > 0 then redis.call('LSET', log, 0, head) end
return {1, wait}
