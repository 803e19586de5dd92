"""The Lua scripts of the Redis store. Each is one atomic operation on keys of one hash slot.

A record is passed as one argument for each of its fields: ``=`` and the value, or an empty string where the field is
absent. A record is absent when all its fields are.

Redis does not roll back a script when one of its commands fails. So every failure comes before the first write, or is
that of the first write. A key of another type: the record is read first, and rows are written before it. Memory: Redis
checks it at a script's first write only. Rights: a script asks for them first, from Redis 7.0. Before that, a user who may
HSET but not HDEL could leave half an operation behind.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from sqe_chain.adapters.store_rules import HEADER_FIELDS, HOME_FIELDS


@dataclass(frozen=True, slots=True)
class Script:
    """A script and its SHA-1, by which Redis caches it (not for security)."""

    text: str

    @property
    def digest(self) -> str:
        """Lower case hexadecimal SHA-1."""
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


def _record(fields: tuple[str, ...]) -> str:
    names = ", ".join(f"'{name}'" for name in fields)
    return f"""
local fields = {{ {names} }}
local function read_record(key)
  return redis.call('HMGET', key, unpack(fields))
end
-- Absent and empty fields differ: HMGET gives false for the former, which becomes an argument without '='.
local function equals(record, first)
  for i = 1, #fields do
    local have = ''
    if record[i] then have = '=' .. record[i] end
    if have ~= ARGV[first + i - 1] then return false end
  end
  return true
end
local function replace(key, first)
  for i = 1, #fields do
    local value = ARGV[first + i - 1]
    if value == '' then
      redis.call('HDEL', key, fields[i])
    else
      redis.call('HSET', key, fields[i], string.sub(value, 2))
    end
  end
end
"""


_MAY_WRITE: Final = """
if redis.acl_check_cmd then
  for _, key in ipairs(KEYS) do
    if not (redis.acl_check_cmd('HSET', key, 'f', 'v') and redis.acl_check_cmd('HDEL', key, 'f')) then
      return redis.error_reply('NOPERM the user may not run HSET and HDEL on ' .. key)
    end
  end
end
"""


SET_HOME: Final = Script(
    _record(HOME_FIELDS)
    + """
-- KEYS: home, plans.
-- ARGV: 1-5 the home before, 6-10 the home after, 11 '' or the number below which plans are dropped,
-- 12 the plan's number and 13 the plan, if there is one.
-- The home is replaced last: it is the only record that a retry compares, so it must not be ahead of the plans.
local current = read_record(KEYS[1])
if not equals(current, 1) then return current end
"""
    + _MAY_WRITE
    + """
local numbers = {}
if ARGV[11] ~= '' then numbers = redis.call('HKEYS', KEYS[2]) end
if #ARGV > 11 then
  redis.call('HSET', KEYS[2], ARGV[12], ARGV[13])
  numbers[#numbers + 1] = ARGV[12]
end
for _, number in ipairs(numbers) do
  if number < ARGV[11] then redis.call('HDEL', KEYS[2], number) end
end
replace(KEYS[1], 6)
return read_record(KEYS[1])
"""
)
"""Compare and set a home, with a plan. Takes longer the more plans are kept: 0.2 to 0.4 ms for 1,000."""

_FORGET: Final = """
-- KEYS: of the record, and of what is deleted with it. ARGV: the record before.
local current = read_record(KEYS[1])
if not equals(current, 1) then return current end
redis.call('DEL', unpack(KEYS))
return read_record(KEYS[1])
"""

FORGET_HOME: Final = Script(_record(HOME_FIELDS) + _FORGET)
"""Compare and delete a home, with its heartbeat and plans."""

FORGET_PART: Final = Script(_record(HEADER_FIELDS) + _FORGET)
"""Compare and delete a header, with the states that are left and their JSON."""

_ALL_FIELDS: Final = """
-- A flow has a few hundred stages at most, far below the some 8,000 values that unpack() takes.
local function all(key)
  local names = redis.call('HKEYS', key)
  if #names == 0 then return {} end
  local texts, found = redis.call('HMGET', key, unpack(names)), {}
  for i = 1, #names do
    found[2 * i - 1], found[2 * i] = names[i], texts[i]
  end
  return found
end
"""

GET_LOCATIONS: Final = Script(
    _ALL_FIELDS
    + """
-- KEYS: locations.
return all(KEYS[1])
"""
)
"""Read all fields at one moment, with commands that a service may run anyway: HGETALL is not among them."""

SET_LOCATIONS: Final = Script(
    _ALL_FIELDS
    + """
-- KEYS: locations. ARGV: epoch and number, then field, text, field, text, ...
local current = redis.call('HMGET', KEYS[1], 'epoch', 'number')
-- Texts of fixed width: concatenated, they compare as the pair of numbers does.
if current[1] and current[2] and current[1] .. current[2] >= ARGV[1] .. ARGV[2] then return all(KEYS[1]) end
"""
    + _MAY_WRITE
    + """
-- Not DEL: a service may lack the right to it. Fields of stages that were removed have to go.
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do redis.call('HDEL', KEYS[1], name) end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'number', ARGV[2], unpack(ARGV, 3))
return all(KEYS[1])
"""
)
"""Replace the locations by newer ones: by a larger epoch, or the same one and a larger number."""

FORGET_LOCATIONS: Final = Script(
    _ALL_FIELDS
    + """
-- KEYS: locations. ARGV: epoch and number.
local current = redis.call('HMGET', KEYS[1], 'epoch', 'number')
if current[1] == ARGV[1] and current[2] == ARGV[2] then redis.call('DEL', KEYS[1]) end
return all(KEYS[1])
"""
)
"""Compare and delete the locations."""

BEAT: Final = Script(
    """
-- KEYS: home, beat. ARGV: epoch, run id.
local current = redis.call('HMGET', KEYS[1], 'epoch', 'run_id')
if ARGV[2] == '' or current[1] ~= ARGV[1] or current[2] ~= ARGV[2] then return 0 end
redis.call('INCR', KEYS[2])
return 1
"""
)
"""Increment the heartbeat counter, for the holder of the claim only."""

_WITNESS: Final = """
local function said(key, run)
  local witness = redis.call('HGET', key, 'states')
  if witness and run and string.sub(witness, 22) == run then return tonumber(string.sub(witness, 1, 20)) end
  return nil
end
"""

WITNESS_NOW: Final = Script(
    _WITNESS
    + """
-- KEYS: header, states. What the header says of the states, and how many there are; nothing: it does not say.
local count = said(KEYS[1], redis.call('HGET', KEYS[1], 'run_id'))
return count and {count, redis.call('HLEN', KEYS[2])} or {}
"""
)
"""Read both at one moment."""

_COMPARE: Final = (
    _record(HEADER_FIELDS)
    + """
local current = read_record(KEYS[1])
if not equals(current, 1) then return current end
"""
    + _MAY_WRITE
)

# unpack() in batches: Lua's stack holds about 8,000 values.
_ROWS: Final = (
    _WITNESS
    + """
-- Counted on from what was said, and not anew: else a write would hide that states were lost before it.
local count = said(KEYS[1], current[2]) or redis.call('HLEN', KEYS[2])
local function each(command, key, first, last)
  local fields = 0
  for i = first, last, 4000 do
    fields = fields + redis.call(command, key, unpack(ARGV, i, math.min(i + 3999, last)))
  end
  return fields
end
local last = 13 + tonumber(ARGV[13])
count = count + each('HSET', KEYS[2], 14, last)
"""
)

_END: Final = """
replace(KEYS[1], 7)
redis.call('HSET', KEYS[1], 'states', string.format('%020d ', count) .. string.sub(ARGV[8], 2))
return read_record(KEYS[1])
"""

WRITE: Final = Script(
    """
-- KEYS: header, states.
-- ARGV: 1-6 the header before, 7-12 the header after, 13 the number of arguments that follow as
-- key, state, key, state, ...; all arguments after them are keys to delete.
-- The header is replaced after the rows: if a row is refused, the header must not be ahead of it.
"""
    + _COMPARE
    + _ROWS
    + """
count = count - each('HDEL', KEYS[2], last + 1, #ARGV)
"""
    + _END
)
"""Compare and set a header, with rows."""

WRITE_JSON: Final = Script(
    """
-- KEYS: header, states, JSON.
-- ARGV: as in WRITE, but the states are followed by the number of arguments that follow as key, JSON, key, JSON, ...
"""
    + _COMPARE
    + """
redis.call('HGET', KEYS[3], '')  -- fails here, before any write, if it is not a hash
"""
    + _ROWS
    + """
local last_json = last + 1 + tonumber(ARGV[last + 1])
each('HSET', KEYS[3], last + 2, last_json)
count = count - each('HDEL', KEYS[2], last_json + 1, #ARGV)
each('HDEL', KEYS[3], last_json + 1, #ARGV)
"""
    + _END
)
"""Compare and set a header, with rows and their JSON."""

WRITE_HASHES: Final = Script(
    """
-- KEYS: header, states, and the hash of each state that has one: first of those that are set, then of those deleted.
-- ARGV: as in WRITE, but the states are followed by the number of hashes that are set, and for each of them by the
-- number of its arguments, and these: field, text, field, text, ...
"""
    + _COMPARE
    + """
for i = 3, #KEYS do
  if redis.acl_check_cmd and not redis.acl_check_cmd('DEL', KEYS[i]) then
    return redis.error_reply('NOPERM the user may not run DEL on ' .. KEYS[i])
  end
end
"""
    + _ROWS
    + """
for i = 3, #KEYS do redis.call('DEL', KEYS[i]) end
local at = last + 2
for i = 3, 2 + tonumber(ARGV[last + 1]) do
  local count = tonumber(ARGV[at])
  each('HSET', KEYS[i], at + 1, at + count)
  at = at + count + 1
end
count = count - each('HDEL', KEYS[2], at, #ARGV)
"""
    + _END
)
"""Compare and set a header, with rows and a hash of each. A hash is deleted first: it may have lost fields."""

TRY: Final = Script(
    """
-- KEYS: one that nobody else uses. It is gone at the end, also when a command fails: a hash without fields is deleted.
-- ARGV: further commands that the flow needs. Returns 1 if all rights were checked, else 0.
local names = {'HSET', 'HDEL', 'HGET', 'HMGET', 'HKEYS', 'HLEN', 'HSCAN', 'GET', 'INCR'}
for _, name in ipairs(ARGV) do names[#names + 1] = name end
if redis.acl_check_cmd then
  for _, name in ipairs(names) do
    local allowed
    if name == 'HMGET' or name == 'HGET' or name == 'HDEL' then allowed = redis.acl_check_cmd(name, KEYS[1], 'f')
    elseif name == 'HSET' then allowed = redis.acl_check_cmd(name, KEYS[1], 'f', '')
    elseif name == 'HSCAN' then allowed = redis.acl_check_cmd(name, KEYS[1], '0')
    else allowed = redis.acl_check_cmd(name, KEYS[1]) end
    if not allowed then return redis.error_reply('NOPERM the user may not run ' .. name .. ' on ' .. KEYS[1]) end
  end
end
redis.call('HLEN', KEYS[1])
redis.call('HSET', KEYS[1], 'f', '')
redis.call('HDEL', KEYS[1], 'f')
return redis.acl_check_cmd and 1 or 0
"""
)
"""Try a write that undoes itself, and from Redis 7.0 the rights of a service."""
