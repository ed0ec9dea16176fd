-- Shared: the choice of the next waiter in the queue of a lock, which gets the lock or a message.
-- include queue.lua

local function leave(owner)
  redis.call('ZREM', queue, owner)
  redis.call('HDEL', waiters, owner)
end

local function waiter(owner)
  return parts_of(redis.call('HGET', waiters, owner))
end

-- Wakes a waiter by a message on its channel: its owner, or a grant. Returns false if its process is known to be gone.
local function wake(message, channel)
  if channel == '' then return true end
  -- If an access list forbids the PUBLISH, the waiter counts as alive: it polls.
  local reached = redis.pcall('PUBLISH', channel, message)
  return type(reached) == 'table' or reached > 0 or counts_subscribers ~= '1'
end

-- A field of `waiters`. It exists if the last owner that got its turn came from the front of the queue, before waiters
-- that were not at the front.
local FRONT_HAD = '=front'

-- Takes the next waiter that is awake out of the queue, and notifies it by `notify`. Stops at `self`, which needs no
-- message. Returns the waiter and its pickup window ms; nil if there is none. Passes over waiters and drops them as
-- queue.lua says.
-- Owners at the front and the others take turns. Otherwise two sets that come to the front again and again would starve
-- the others.
-- `notify` gets the waiter, its pickup window, its channel, and its fences and nonce. It returns false if the waiter's
-- process is known to be gone.
local function next_waiter(self, notify)
  local front_passed, others_passed = 0, 0
  while front_passed + others_passed < MOST_PASSED do
    local head, score = unpack(redis.call('ZRANGE', queue, front_passed, front_passed, 'WITHSCORES'))
    local is_at_front = score and tonumber(score) < 0
    local is_past_others = false
    if is_at_front or others_passed > 0 then
      local other = redis.call('ZRANGE', queue, '(0', '+inf', 'BYSCORE', 'LIMIT', others_passed, 1)[1]
      if not is_at_front or other and redis.call('HGET', waiters, FRONT_HAD) then
        head, is_at_front = other, false
      else
        is_past_others = other ~= nil
      end
    end
    if not head then return nil end
    local seen, pickup, _, _, channel, fences, nonce = waiter(head)
    local is_self = head == self
    local state = is_self and 'awake' or state_of(seen, pickup, channel)
    if state == 'silent' then
      if is_at_front then front_passed = front_passed + 1 else others_passed = others_passed + 1 end
    else
      -- HDEL comes first: if the server rejects it, the waiter keeps its place.
      redis.call('HDEL', waiters, head)
      redis.call('ZREM', queue, head)
      if is_self or state == 'awake' and notify(head, pickup, channel, fences, nonce) then
        -- By pcall: the owner has left the queue, and a rejected write must not keep the lock from it.
        if is_past_others then
          redis.pcall('HSET', waiters, FRONT_HAD, '1')
          redis.pcall('PEXPIRE', waiters, 2 * life)
        else
          redis.pcall('HDEL', waiters, FRONT_HAD)
        end
        return head, pickup
      end
    end
  end
end

-- Wakes the first waiter that is awake, and leaves it in the queue. Passes over waiters and drops them on the way. Returns
-- the waiter, and its place in the queue. Wakes a waiter with a window of 0 too (quorum_turn.lua), and passes it over.
local function wake_head()
  local place = 0
  while place < MOST_PASSED do
    local head = redis.call('ZRANGE', queue, place, place)[1]
    if not head then return end
    local seen, pickup, _, _, channel = waiter(head)
    local state = state_of(seen, pickup, channel)
    if state == 'awake' and wake(head, channel) then return head, place end
    if state == 'silent' then
      if pickup == '0' then wake(head, channel) end
      place = place + 1
    else
      leave(head)
    end
  end
end

-- Makes `owner` the holder of a mutex for `ttl` ms, and marks the value if others wait. Returns an error if the server
-- refuses the write.
local function give(lock, owner, ttl)
  local value = owner
  if redis.call('ZCARD', queue) > 0 then value = owner .. MARK end
  local set = redis.pcall('SET', lock, value, 'PX', ttl)
  return set.err and set
end

-- Makes the next live waiter the holder of a mutex for its pickup window, and notifies it. Stops at `self`, which does
-- not become the holder yet. Returns the waiter, an error if the server refused to make it the holder, and its pickup
-- window ms.
-- The message comes last, so that it never tells of a grant that failed. If a message without a grant reaches nobody,
-- the next waiter becomes the holder in place of this one. But a waiter that listens at a replica may receive a message
-- although PUBLISH counts nobody. So a grant by message is final, and the script looks for subscribers before it.
-- `reserve` reserves fences. With it, a waiter with a nonce gets a grant by message: its owner, the nonce and the fence.
-- Otherwise the message is the owner, which then asks for the mutex.
local function hand_to_next(lock, self, reserve)
  local refused, was_given
  local function give_and_notify(head, pickup, channel, fences, nonce)
    local message, is_granted = head, false
    if reserve and nonce ~= '' and may_have_subscriber(channel) then
      local fence = reserve(fences)
      if type(fence) == 'number' then message, is_granted = string.format('%s %s %.0f', head, nonce, fence), true end
    end
    -- The value is marked in any case: a mutex that was handed over will most likely have waiters again. Without any, the
    -- release only looks into an empty queue.
    local set = redis.pcall('SET', lock, head .. MARK, 'PX', pickup)
    refused, was_given = set.err and set, true
    return refused or wake(message, channel) or is_granted
  end
  local head, pickup = next_waiter(self, give_and_notify)
  -- The messages may all have reached nobody.
  if was_given and (refused or not head or head == self) then redis.call('DEL', lock) end
  return head, refused, pickup
end

-- Hands a mutex to the first waiter that is awake, for its pickup window. Frees the mutex if there is none. Returns the new
-- holder. `reserve` as for `hand_to_next`.
local function hand_over(lock, reserve)
  local head, refused = hand_to_next(lock, nil, reserve)
  if head and not refused then return head end
  redis.call('DEL', lock)
end

-- Calls `act`. Returns true and the result of `act`. Returns false if a key had another type than a lock's: such a key
-- is not ours, and must not keep a lock from its end. After any other error, returns false, nil and the error as a
-- reply, because raising it again would lose its code.
local function ignore_wrong_type(act, ...)
  local ok, result = pcall(act, ...)
  if ok then return true, result end
  local text = type(result) == 'table' and result.err or result
  if string.find(text, 'WRONGTYPE', 1, true) then return false end
  return false, nil, redis.error_reply(text)
end

-- Gives back the fences after `used`, unless another grant has raised the record above `last`.
local function give_back(fence, used, last)
  if used ~= '' and redis.pcall('GET', fence) == last then
    redis.pcall('SET', fence, used, 'KEEPTTL')
  end
end
