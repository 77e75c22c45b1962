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

local LIBRARY_VERSION = 2

local function missing(marks)
  return redis.error_reply('MISSING ' .. marks .. ' has no version')
end

local function text(number)
  return string.format('%.0f', number)
end

local function begin_history(marks, version, nonce)
  redis.call('HSET', marks, 'version', version, 'nonce', nonce, 'previous', '', 'trimmed', version,
    'appended_bytes', '0', 'trimmed_bytes', '0', 'keeper', '', 'lease_ms', '0', 'folds', '0')
end

-- Make a bucket: keys marks; arguments nonce. Answers 1, or 0 if it was there.
local function create(keys, args)
  if redis.call('HEXISTS', keys[1], 'version') == 1 then
    return 0
  end
  begin_history(keys[1], '0', args[1])
  return 1
end

-- Append an entry; `head` is version, nonce, anything, appended_bytes as they are, and is made what
-- they become. Further fields of marks may be changed with it.
local function append(log, marks, head, nonce, blob, changes)
  local appended = text(tonumber(head[4]) + #blob)
  local version = text(tonumber(head[1]) + 1)
  redis.call('XADD', log, version .. '-0', 'nonce', nonce, 'previous', head[2], 'blob', blob,
    'appended_bytes', appended)
  redis.call('HSET', marks, 'version', version, 'nonce', nonce, 'previous', head[2],
    'appended_bytes', appended, unpack(changes))
  head[1], head[2], head[3], head[4] = version, nonce, head[2], appended
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
    local changes = {}
    for i = 3, #args, 3 do
      changes[#changes + 1] = args[i]
      changes[#changes + 1] = args[i + 2]
      found[5 + i / 3] = args[i + 2]
    end
    append(log, marks, found, args[1], args[2], changes)
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

local MOST_VALUES_A_CALL = 2000  -- what Lua's stack takes at once is about 8000

-- Do one command for many arguments [first, past) of `args`, some at a time.
local function in_parts(command, key, args, first, past)
  while first < past do
    local till = math.min(past, first + MOST_VALUES_A_CALL)
    redis.call(command, key, unpack(args, first, till - 1))
    first = till
  end
end

-- Write rows to sub-hashes and remove others: `keys` from the third on; `args` from `place` on: for
-- each sub-hash how many rows it gets and how many it loses, then id and row of all it gets, then
-- the ids of all it loses, in the order of the sub-hashes.
local function write(keys, args, place)
  local subs = #keys - 2
  local at = place + 2 * subs
  for k = 1, subs do
    local past = at + 2 * tonumber(args[place + 2 * k - 2])
    in_parts('HSET', keys[2 + k], args, at, past)
    at = past
  end
  for k = 1, subs do
    local past = at + tonumber(args[place + 2 * k - 1])
    in_parts('HDEL', keys[2 + k], args, at, past)
    at = past
  end
end

-- Fold: keys log, marks, then sub-hashes; arguments keeper, number, version, nonce, then `write`.
local function fold(keys, args)
  local number = tonumber(args[2])
  local refusal = fenced(keys[1], keys[2], args[1], text(number - 1), args[3], args[4])
  if refusal then
    return refusal
  end
  write(keys, args, 5)
  redis.call('HSET', keys[2], 'folds', args[2])
  return 1
end

-- Append deletions: keys log, marks; arguments keeper, folds, version, nonce, nonce of the entry,
-- blob.
local function delete(keys, args)
  local log, marks = keys[1], keys[2]
  local refusal = fenced(log, marks, args[1], args[2], args[3], args[4])
  if refusal then
    return refusal
  end
  local head = redis.call('HMGET', marks, 'version', 'nonce', 'previous', 'appended_bytes')
  append(log, marks, head, args[5], args[6], {})
  return 1
end

-- Remove entries: keys log, marks; arguments keeper, folds, version, nonce, through, trimmed before.
local function trim(keys, args)
  local log, marks = keys[1], keys[2]
  local refusal = fenced(log, marks, args[1], args[2], args[3], args[4])
  if refusal then
    return refusal
  end
  if tonumber(redis.call('HGET', marks, 'trimmed')) < tonumber(args[6]) then
    return redis.error_reply('LEASE ' .. marks .. ' has entries again up to ' .. args[6])
  end
  local through = args[5]
  local entry = redis.call('XRANGE', log, through .. '-0', through .. '-0')[1]
  if entry then
    redis.call('XTRIM', log, 'MINID', text(tonumber(through) + 1) .. '-0')
    redis.call('HSET', marks, 'trimmed', through, 'trimmed_bytes', entry[2][8])
  end
  return 1
end

-- Read single rows, the head and what follows in the log, all as of one moment: keys log, marks, then
-- sub-hashes; arguments the first entry wanted, how many at most, then of each sub-hash how many rows,
-- then the ids of all of them. Answers version, nonce, trimmed, the entries, then each row or nil.
local function look(keys, args)
  local head = redis.call('HMGET', keys[2], 'version', 'nonce', 'trimmed')
  if not head[1] then
    return missing(keys[2])
  end
  local entries = {}
  if args[2] ~= '0' then
    entries = redis.call('XRANGE', keys[1], args[1], '+', 'COUNT', args[2])
  end
  local answer = {head[1], head[2], head[3], entries}
  local at, place = #keys + 1, 4
  for k = 3, #keys do
    local count = tonumber(args[k])
    for _, row in ipairs(redis.call('HMGET', keys[k], unpack(args, at, at + count - 1))) do
      place = place + 1
      answer[place] = row
    end
    at = at + count
  end
  return answer
end

local function loading(marks, token)
  if redis.call('HEXISTS', marks, 'version') == 1 then
    return redis.error_reply('EXISTS ' .. marks .. ' is there')
  end
  if redis.call('HGET', marks, 'loading') ~= token then
    return redis.error_reply('EXISTS ' .. marks .. ' is being filled by another')
  end
  return nil
end

-- Begin to fill a bucket that is missing, from nothing: keys log, marks, all sub-hashes; arguments
-- token. Whoever had begun before is refused from now on.
local function load_begin(keys, args)
  if redis.call('HEXISTS', keys[2], 'version') == 1 then
    return redis.error_reply('EXISTS ' .. keys[2] .. ' is there')
  end
  redis.call('UNLINK', unpack(keys))
  redis.call('HSET', keys[2], 'loading', args[1])
  return 1
end

-- Fill: keys log, marks, then sub-hashes; arguments token, then `write`.
local function load_rows(keys, args)
  local refusal = loading(keys[2], args[1])
  if refusal then
    return refusal
  end
  write(keys, args, 2)
  return 1
end

-- The bucket is there: keys marks; arguments token, version, nonce, then sources and marks.
local function load_end(keys, args)
  local marks = keys[1]
  local refusal = loading(marks, args[1])
  if refusal then
    return refusal
  end
  redis.call('HDEL', marks, 'loading')
  begin_history(marks, args[2], args[3])
  in_parts('HSET', marks, args, 4, #args + 1)
  return 1
end

-- Remove a bucket: all its keys.
local function drop(keys)
  redis.call('UNLINK', unpack(keys))
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
register('delete', delete, {'allow-oom'})
register('look', look, {'no-writes'})
register('load_begin', load_begin, {'allow-oom'})
register('load_rows', load_rows, {})
register('load_end', load_end, {})
register('drop', drop, {'allow-oom'})
register('version', function() return LIBRARY_VERSION end, {'no-writes'})
