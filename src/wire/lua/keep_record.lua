-- Keeps the records of the last fences for as long as after a grant now.
--
-- KEYS  the record of each lock alone, as in renew.lua
-- ARGV  1 fence memory, ms
-- Reply for each record 1 if it stays that long, or is gone, and below 0 as in renew.lua
-- Idempotent because it only raises a time to live, and creates nothing.
-- include batch.lua
return for_each_key(function(key)
  local ttl = redis.pcall('PTTL', key)
  if failed(ttl) then return ttl end
  -- The record of a fence that is ahead of the clock stays for longer.
  if ttl < 0 or ttl >= tonumber(ARGV[1]) then return 1 end
  local set = redis.pcall('PEXPIRE', key, ARGV[1])
  return failed(set) and set or 1
end)
