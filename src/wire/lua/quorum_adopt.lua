-- Gives a mutex a new owner on one node of a quorum. So an adopter takes it from the detached owner, or gives it back.
--
-- KEYS  1 lock  2 fence
-- ARGV  1 owner  2 lease ms  3 fence memory ms  4 the client's clock, µs since 1970  5 the owner that ends
--       6 '1', or '0' if the new lease gets no fence
-- Reply {first fence, last fence (the same), 1 if others wait, else 0}  this node gives the mutex to the owner
--       -1 the key is gone  -2 another owner holds it
-- Idempotent because the new owner replaces the old one: a repeat finds the new owner, and grants again with a higher
-- fence.
--
-- The record never falls, so the fences that the old owner did not use are lost. The script needs no fence of the old
-- owner: a majority of the nodes reserved that owner's fences, and the new owner's majority has one of these nodes.
-- include quorum_fence.lua
-- include value.lua
local lock, owner, lease = KEYS[1], ARGV[1], tonumber(ARGV[2])
local value = value_of(lock, redis.call)
if not value then return -1 end
local mark = is_marked(value) and MARK or ''
if value ~= owner .. mark and value ~= ARGV[5] .. mark then return -2 end
local first, last = reserve(KEYS[2], ARGV[6], ARGV[3], ARGV[4])
if type(first) == 'table' then return first end
-- The time to live only rises. So an adopter that gets too few nodes does not shorten the lease that it gives back.
redis.call('SET', lock, owner .. mark, 'PX', string.format('%.0f', math.max(lease, redis.call('PTTL', lock))))
return {first, last, mark ~= '' and 1 or 0}
