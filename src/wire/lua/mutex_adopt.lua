-- Gives a detached mutex a new owner, and so begins a new lease.
--
-- KEYS  1 lock  2 fence
-- ARGV  1 owner  2 lease ms  3 fence memory ms  4 the owner that was detached  5 its last fence, 0 if it had none
--       6 '1', or '0' if the new lease gets no fence  7 '1' if the new lease may end before the old one
-- Reply fence                          granted
--       {fence, 1}                     granted, and others wait
--       -1 the key is gone  -2 another owner holds it, or the lock never gave that fence
-- Idempotent because the new owner replaces the old one: a repeat finds the new owner, and grants again.
-- include fence.lua
-- include value.lua
local lock, owner, lease = KEYS[1], ARGV[1], ARGV[2]
-- How far the claim's fence may be ahead of the record, µs. The script that wrote the owner also wrote the record. So
-- the fence is ahead only if a failover lost the last write of the record.
local AHEAD_OF_RECORD = 5000000
-- How far the claim's fence may be ahead of the clock if Redis has forgotten the record, µs. It is ahead if the clock
-- was set back since, or if the lock gave fences faster than the clock counts.
local AHEAD_OF_CLOCK = 60000000
local value = value_of(lock, redis.call)
if not value then return -1 end
local mark = is_marked(value) and MARK or ''
local is_adopted = value == owner .. mark
if not is_adopted then
  if value ~= ARGV[4] .. mark then return -2 end
end
-- An owner without a fence has reserved none, so the record stays as it is.
if not is_adopted and ARGV[5] ~= '0' then
  -- By call, so that a key of another type ends the script before it writes anything.
  local record = redis.call('GET', KEYS[2])
  local time = redis.call('TIME')
  local last, latest = last_fence(record), time[1] * 1000000 + time[2] + AHEAD_OF_CLOCK
  if last > 0 then latest = last + AHEAD_OF_RECORD end
  if tonumber(ARGV[5]) > latest then return -2 end
  -- While the old owner holds the lock, no other owner gets a fence. So the reserved fences after ARGV[5] were never
  -- used. If Redis has forgotten the record, the claim has the last fence.
  local kept = record and redis.pcall('SET', KEYS[2], ARGV[5], 'KEEPTTL')
    or redis.pcall('SET', KEYS[2], ARGV[5], 'PX', ARGV[3])
  if kept.err then return kept end
end
local fence = next_fences(KEYS[2], ARGV[6], ARGV[3])
if type(fence) == 'table' then return fence end
if is_adopted or ARGV[7] == '0' then
  lease = string.format('%.0f', math.max(redis.call('PTTL', lock), tonumber(lease)))
end
-- It always writes, as `at_least` does.
redis.call('SET', lock, owner .. mark, 'PX', lease)
if mark == '' then return fence end
return {fence, 1}
