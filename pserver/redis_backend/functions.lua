#!lua name=headrace
--[[
The atomic operations of a bucket. Everything else is a plain command, sent by redis_store.py.

A bucket is two keys and its sub-hashes of rows, all under one hash tag:

    {model:bucket}:marks    its head, its lease, and for every source the first offset not applied
    {model:bucket}:log      the entries, `version-0`: nonce, previous, blob, appended_bytes
    {model:bucket}:rows:n   id -> row

The two keys of a reshard, {model}:shape and {model}:reshard, have a hash tag of their own.

Marks and offsets are compared as text: both sides write them as plain decimals. Each entry holds
the bytes appended up to and including it, so a trim reads one entry to count what it removes.

`push` lacks allow-oom: at the memory limit the server refuses the whole call. Functions that free
memory, or keep the right to free it, have allow-oom.

Names of functions that write end in the version, so an older process cannot call newer functions
(server_requirements.py). Raise both versions with every change of the code below.
]]

local LIBRARY_VERSION = 4

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

-- Create a bucket: keys marks; arguments nonce. Answers 1, or 0 if the bucket exists. Refuses while
-- a load is unfinished, because the new bucket would contain its rows.
local function create(keys, args)
  if redis.call('HEXISTS', keys[1], 'version') == 1 then
    return 0
  end
  if redis.call('HEXISTS', keys[1], 'loading') == 1 then
    return redis.error_reply('EXISTS ' .. keys[1] .. ' is partly filled: complete the restore ' ..
      'of the model, or drop the model')
  end
  begin_history(keys[1], '0', args[1])
  return 1
end

local MOST_VALUES_A_CALL = 2000  -- even: pairs stay together; unpack takes about 8000 at most

-- Run one command for arguments [first, past) of `args`, in several calls.
local function in_parts(command, key, args, first, past)
  while first < past do
    local till = math.min(past, first + MOST_VALUES_A_CALL)
    redis.call(command, key, unpack(args, first, till - 1))
    first = till
  end
end

-- Return the values of any number of fields; false where a field is missing.
local function values_of(key, fields)
  if #fields <= MOST_VALUES_A_CALL then
    return redis.call('HMGET', key, unpack(fields))
  end
  local values = {}
  for first = 1, #fields, MOST_VALUES_A_CALL do
    local till = math.min(#fields, first + MOST_VALUES_A_CALL - 1)
    for offset, value in ipairs(redis.call('HMGET', key, unpack(fields, first, till))) do
      values[first + offset - 1] = value
    end
  end
  return values
end

-- Append an entry. `head` holds version, nonce, a value that is ignored, and appended_bytes; it is
-- replaced by the new version, nonce, previous and appended_bytes. `changes` are further fields of
-- marks and their values. Too many for one call are written first: an error then leaves no entry
-- beyond the head.
local function append(log, marks, head, nonce, blob, changes)
  local appended = text(tonumber(head[4]) + #blob)
  local version = text(tonumber(head[1]) + 1)
  if #changes > MOST_VALUES_A_CALL then
    in_parts('HSET', marks, changes, 1, #changes + 1)
    changes = {}
  end
  redis.call('XADD', log, version .. '-0', 'nonce', nonce, 'previous', head[2], 'blob', blob,
    'appended_bytes', appended)
  redis.call('HSET', marks, 'version', version, 'nonce', nonce, 'previous', head[2],
    'appended_bytes', appended, unpack(changes))
  head[1], head[2], head[3], head[4] = version, nonce, head[2], appended
end

-- Apply a push at most once; the marks are its fence. Keys log, marks; arguments nonce, blob, then
-- source, start, stop of each span. A mark that moves to 0 is deleted. Answers version, nonce,
-- previous, bytes in the log, then the mark of each source.
local function push(keys, args)
  local log, marks = keys[1], keys[2]
  local fields = {'version', 'nonce', 'previous', 'appended_bytes', 'trimmed_bytes'}
  for i = 3, #args, 3 do
    fields[#fields + 1] = args[i]
  end
  local found = values_of(marks, fields)
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
    local changes, ended = {}, {}
    for i = 3, #args, 3 do
      if args[i + 2] == '0' then
        ended[#ended + 1] = args[i]
      else
        changes[#changes + 1] = args[i]
        changes[#changes + 1] = args[i + 2]
      end
      found[5 + i / 3] = args[i + 2]
    end
    append(log, marks, found, args[1], args[2], changes)
    in_parts('HDEL', marks, ended, 1, #ended + 1)
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

-- Release the lease: keys marks; arguments keeper.
local function release(keys, args)
  if redis.call('HGET', keys[1], 'keeper') == args[1] then
    redis.call('HSET', keys[1], 'keeper', '')
  end
  return 1
end

-- Return an error unless this keeper holds the lease, that many of its folds were applied, and the
-- history still has that entry.
local function fenced(log, marks, keeper, folds, version, nonce)
  local found = redis.call('HMGET', marks, 'version', 'nonce', 'keeper', 'lease_ms', 'folds')
  if not found[1] then
    return missing(marks)
  end
  if found[3] ~= keeper then
    return redis.error_reply('LEASE ' .. marks .. ': expected keeper ' .. keeper .. ', got "' ..
      found[3] .. '"')
  end
  if now_ms() >= tonumber(found[4]) then
    return redis.error_reply('LEASE ' .. marks .. ': the lease of ' .. keeper .. ' has ended')
  end
  if found[5] ~= folds then
    return redis.error_reply('LEASE ' .. marks .. ': expected ' .. folds .. ' folds, got ' ..
      found[5])
  end
  if found[1] == version and found[2] == nonce then
    return nil
  end
  local entry = redis.call('XRANGE', log, version .. '-0', version .. '-0')[1]
  if not entry or entry[2][2] ~= nonce then
    return redis.error_reply('LEASE ' .. marks .. ' no longer has this entry ' .. version)
  end
  return nil
end

-- Write rows to sub-hashes and remove others: `keys` from the third on; `args` from `place` on. The
-- arguments are, for each sub-hash, the number of rows to write and of rows to remove; then id and
-- row of all rows to write, then the ids of all rows to remove, in the order of the sub-hashes.
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

-- Append deletions: keys log, marks; arguments keeper, folds, version, nonce, nonce of the new
-- entry, blob.
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

-- Remove entries: keys log, marks; arguments keeper, folds, version, nonce, last entry to remove,
-- last entry trimmed before.
local function trim(keys, args)
  local log, marks = keys[1], keys[2]
  local refusal = fenced(log, marks, args[1], args[2], args[3], args[4])
  if refusal then
    return refusal
  end
  if tonumber(redis.call('HGET', marks, 'trimmed')) < tonumber(args[6]) then
    return redis.error_reply('LEASE ' .. marks .. ' has trimmed entries again, up to ' .. args[6])
  end
  local through = args[5]
  local entry = redis.call('XRANGE', log, through .. '-0', through .. '-0')[1]
  if entry then
    redis.call('XTRIM', log, 'MINID', text(tonumber(through) + 1) .. '-0')
    redis.call('HSET', marks, 'trimmed', through, 'trimmed_bytes', entry[2][8])
  end
  return 1
end

-- Read single rows, the head and entries of the log, all as of one moment: keys log, marks, then
-- sub-hashes; arguments first entry, most entries, then the number of rows of each sub-hash, then
-- their ids. Answers version, nonce, trimmed, the entries, then each row or nil. Processes of other
-- versions call it, too: a change of its arguments or answer needs another name.
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

-- Return an error unless the load with this token is the last that began, and has not ended. A
-- bucket that exists has no token.
local function loading(marks, token)
  if redis.call('HGET', marks, 'loading') ~= token then
    return redis.error_reply('EXISTS ' .. marks .. ' exists, or another process fills it')
  end
  return nil
end

-- Begin to fill a missing bucket, after removing leftovers: keys log, marks, all sub-hashes;
-- arguments token. Calls of earlier loads are refused from now on.
local function load_begin(keys, args)
  if redis.call('HEXISTS', keys[2], 'version') == 1 then
    return redis.error_reply('EXISTS ' .. keys[2] .. ' exists')
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

-- End a load; the bucket exists from now on: keys marks; arguments token, version, nonce, then
-- sources and marks.
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

-- Replace the shape of a model if it is still the expected one: keys shape, reshard; arguments
-- expected shape, new shape, token of a reshard or ''. Answers 1; 0 if the shape is another one; -1
-- if another reshard holds the token, or none does.
local function reshape(keys, args)
  if args[3] ~= '' and redis.call('GET', keys[2]) ~= args[3] then
    return -1
  end
  if redis.call('GET', keys[1]) ~= args[1] then
    return 0
  end
  redis.call('SET', keys[1], args[2])
  return 1
end

-- Renew the token of a reshard, or give it back: keys reshard; arguments token, milliseconds or 0.
-- Answers 1, or 0 without the token.
local function hold_reshard(keys, args)
  if redis.call('GET', keys[1]) ~= args[1] then
    return 0
  end
  if args[2] == '0' then
    redis.call('DEL', keys[1])
  else
    redis.call('SET', keys[1], args[1], 'PX', args[2])
  end
  return 1
end

-- Remove a bucket: all its keys.
local function drop(keys)
  redis.call('UNLINK', unpack(keys))
  return 1
end

local READ, WRITE, WRITE_WHEN_FULL = {'no-writes'}, {}, {'allow-oom'}

local function register(name, callback, flags)
  redis.register_function{function_name = 'headrace_' .. name, callback = callback, flags = flags}
end

-- The library of version 2 had names without a version. Processes of that version would load their
-- own library again if they did not find the name.
local function refuse_version_2()
  return redis.error_reply('ERR expected functions of version 2, got ' .. LIBRARY_VERSION ..
    ': a newer headrace uses this store; upgrade this process')
end

local function register_writer(name, callback, flags)
  register(name .. '_' .. LIBRARY_VERSION, callback, flags)
  register(name, refuse_version_2, flags)
end

register_writer('create', create, WRITE)
register_writer('push', push, WRITE)
register_writer('claim', claim, WRITE_WHEN_FULL)
register_writer('release', release, WRITE_WHEN_FULL)
register_writer('fold', fold, WRITE_WHEN_FULL)
register_writer('trim', trim, WRITE_WHEN_FULL)
register_writer('delete', delete, WRITE_WHEN_FULL)
register_writer('load_begin', load_begin, WRITE_WHEN_FULL)
register_writer('load_rows', load_rows, WRITE)
register_writer('load_end', load_end, WRITE)
register_writer('reshape', reshape, WRITE_WHEN_FULL)
register_writer('hold_reshard', hold_reshard, WRITE_WHEN_FULL)
register_writer('drop', drop, WRITE_WHEN_FULL)
register('look', look, READ)
register('version', function() return LIBRARY_VERSION end, READ)
