-- Shared: the replies of a batch. One bad key does not end it: each call is by pcall.

-- Returns the text of an error, or false.
local function failed(reply)
  return type(reply) == 'table' and reply.err
end

-- Returns whether the server rejects writes to any key. The caller must know, because its connection may lead to the
-- wrong server.
local function is_of_the_server(reply)
  for _, code in ipairs({'READONLY', 'MISCONF', 'NOREPLICAS'}) do
    if string.find(reply.err, code, 1, true) then return true end
  end
end

-- Calls `act` with each key and its index. Returns the results for the reply: -1 for a key of another type, -2 if the
-- server rejected the key.
local function for_each_key(act)
  local reply = {}
  for i, key in ipairs(KEYS) do
    local result = act(key, i)
    if failed(result) then
      if is_of_the_server(result) then return result end
      result = string.find(result.err, 'WRONGTYPE', 1, true) and -1 or -2
    end
    reply[i] = result
  end
  return reply
end
