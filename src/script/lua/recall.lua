-- Shared: the recall of a mutex that its process may keep without a guard (linger). queue_next.lua comes before.
--
-- The UUID of a recallable owner has version 8. Its first 18 characters are the end of the name of the channel of its
-- process.

-- Notifies the process of the holder that `owner` waits for `lock`, if the holder is recallable. `value` is the value
-- before `owner` marked it. The waiter that marks it sends the recall, and the head of the queue repeats it at its
-- polls. If the head is not awake, each waiter does. A new waiter repeats nothing. Most often the lock
-- was handed over, and its holder knows that others wait.
local function recall(lock, value, owner, is_new)
  if string.sub(value, 19, 19) ~= '8' then return end
  if is_marked(value) then
    if is_new then return end
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    local seen, pickup, _, _, channel = waiter(head)
    if head ~= owner and state_of(seen, pickup, channel) == 'awake' then return end
  end
  -- If an access list forbids the PUBLISH, the process learns from its next renewal that others wait.
  redis.pcall('PUBLISH', 'leasehold:' .. string.sub(value, 5, 22), 'recall ' .. owner_in(value) .. ' ' .. lock)
end
