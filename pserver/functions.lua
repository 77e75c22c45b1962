#!lua name=headrace
--[[
What must happen in one piece inside the server, and nothing else.

A bucket is two keys and its sub-hashes of rows, all under one hash tag:

    {model:bucket}:marks    its head, its lease, and for every source the first offset not applied
    {model:bucket}:log      the entries, `version-0`: nonce, previous, blob, appended_bytes
    {model:bucket}:rows:n   id -> row

Marks and offsets are compared as text: both sides write them as plain decimals. Each entry keeps how
many bytes were ever appended up to it, so that a trim knows what it removes by looking at one entry.

push lacks allow-oom: at the memory limit the server refuses it whole. What makes room, or keeps the
right to make room, has it.
]]

local LIBRARY_VERSION = 1

local function missing(marks)
  return redis.error_reply('MISSING ' .. marks .. ' has no version')
end

local function text(number)
  return string.format('%.0f', number)
end

-- Make a bucket: keys marks; arguments nonce. Answers 1, or 0 if it was there.
local function create(keys, args)
  if redis.call('HEXISTS', keys[1], 'version') == 1 then
    return 0
  end
  redis.call('HSET', keys[1], 'version', '0', 'nonce', args[1], 'previous', '', 'trimmed', '0',
    'appended_bytes', '0', 'trimmed_bytes', '0', 'keeper', '', 'lease_ms', '0', 'folds', '0')
  return 1
end

-- Apply a push at most once: keys log, marks; arguments nonce, blob, then source, start, stop of
-- each span. Answers version, nonce, previous, bytes in the log, then the mark of each source.
local function push(keys, args)
  local log, marks = keys[1], keys[2]
  local fields = {'version', 'nonce', 'previous', 'appended_bytes', 'trimmed_bytes'}
  for i = 3, #args, 3 do
    fields[#fields + 1] = args[i]
  end
  local found = redis.call('HMGET', marks, unpack(fields))
  if not found[1] then
    return missing(marks)
  end
  local applies = true
  for i = 3, #args, 3 do
    local place = 5 + i / 3
    found[place] = found[place] or '0'
    applies = applies and found[place] == args[i + 1]
  end
  if applies then
    local appended = text(tonumber(found[4]) + #args[2])
    local version = text(tonumber(found[1]) + 1)
    local changes = {'version', version, 'nonce', args[1], 'previous', found[2],
      'appended_bytes', appended}
    for i = 3, #args, 3 do
      changes[#changes + 1] = args[i]
      changes[#changes + 1] = args[i + 2]
      found[5 + i / 3] = args[i + 2]
    end
    redis.call('XADD', log, version .. '-0', 'nonce', args[1], 'previous', found[2],
      'blob', args[2], 'appended_bytes', appended)
    redis.call('HSET', marks, unpack(changes))
    found[1], found[2], found[3], found[4] = version, args[1], found[2], appended
  end
  local answer = {found[1], found[2], found[3], text(tonumber(found[4]) - tonumber(found[5]))}
  for place = 6, #found do
    answer[place - 1] = found[place]
  end
  return answer
end

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Take or renew the lease: keys marks; arguments keeper, milliseconds. Answers 1, or 0 if another
-- keeper holds it.
local function claim(keys, args)
  local marks = keys[1]
  local found = redis.call('HMGET', marks, 'version', 'keeper', 'lease_ms')
  if not found[1] then
    return missing(marks)
  end
  local now = now_ms()
  if found[2] ~= args[1] then
    if found[2] ~= '' and now < tonumber(found[3]) then
      return 0
    end
    redis.call('HSET', marks, 'keeper', args[1], 'folds', '0')
  end
  redis.call('HSET', marks, 'lease_ms', text(now + tonumber(args[2])))
  return 1
end

-- Give the lease back: keys marks; arguments keeper.
local function release(keys, args)
  if redis.call('HGET', keys[1], 'keeper') == args[1] then
    redis.call('HSET', keys[1], 'keeper', '')
  end
  return 1
end

-- Return an error unless this keeper holds the lease, has had that many folds acknowledged, and the
-- history still has that entry.
local function fenced(log, marks, keeper, folds, version, nonce)
  local found = redis.call('HMGET', marks, 'version', 'nonce', 'keeper', 'lease_ms', 'folds')
  if not found[1] then
    return missing(marks)
  end
  if found[3] ~= keeper then
    return redis.error_reply('LEASE ' .. marks .. ' is held by "' .. found[3] .. '", not ' .. keeper)
  end
  if now_ms() >= tonumber(found[4]) then
    return redis.error_reply('LEASE ' .. marks .. ' was held by ' .. keeper .. ' until too long ago')
  end
  if found[5] ~= folds then
    return redis.error_reply('LEASE ' .. marks .. ' had ' .. found[5] .. ' folds, not ' .. folds)
  end
  if found[1] == version and found[2] == nonce then
    return nil
  end
  local entry = redis.call('XRANGE', log, version .. '-0', version .. '-0')[1]
  if not entry or entry[2][2] ~= nonce then
    return redis.error_reply('LEASE ' .. marks .. ' no longer has that entry ' .. version)
  end
  return nil
end

-- Write rows: keys log, marks, then sub-hashes; arguments keeper, number, version, nonce, then for
-- each sub-hash how many rows it gets, then id and row of each, in the order of the sub-hashes.
local MOST_ROWS_A_CALL = 1000  -- what Lua's stack takes at once is about 8000 values
local function fold(keys, args)
  local number = tonumber(args[2])
  local refusal = fenced(keys[1], keys[2], args[1], text(number - 1), args[3], args[4])
  if refusal then
    return refusal
  end
  local last = 4 + #keys - 2
  for k = 3, #keys do
    local past = last + 2 * tonumber(args[2 + k])
    while last < past do
      local till = math.min(past, last + 2 * MOST_ROWS_A_CALL)
      redis.call('HSET', keys[k], unpack(args, last + 1, till))
      last = till
    end
  end
  redis.call('HSET', keys[2], 'folds', args[2])
  return 1
end

-- Remove entries: keys log, marks; arguments keeper, folds, version, nonce, through.
local function trim(keys, args)
  local log, marks = keys[1], keys[2]
  local refusal = fenced(log, marks, args[1], args[2], args[3], args[4])
  if refusal then
    return refusal
  end
  local through = args[5]
  local entry = redis.call('XRANGE', log, through .. '-0', through .. '-0')[1]
  if entry then
    redis.call('XTRIM', log, 'MINID', text(tonumber(through) + 1) .. '-0')
    redis.call('HSET', marks, 'trimmed', through, 'trimmed_bytes', entry[2][8])
  end
  return 1
end

local function register(name, callback, flags)
  redis.register_function{function_name = 'headrace_' .. name, callback = callback, flags = flags}
end

register('create', create, {})
register('push', push, {})
register('claim', claim, {'allow-oom'})
register('release', release, {'allow-oom'})
register('fold', fold, {'allow-oom'})
register('trim', trim, {'allow-oom'})
register('version', function() return LIBRARY_VERSION end, {'no-writes'})
