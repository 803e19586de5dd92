"""Redis: its scripts, and what is read between them."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "Redis forgets a state partition that has changed",
        (
            "adapters/redis/scripts.py",
            "-- KEYS: header, states, json. ARGV: 1-6 the header before.\nlocal current = read_record(KEYS[1])\nif not equals(current, 1) then return current end\n",
            "-- KEYS: header, states, json. ARGV: 1-6 the header before.\nlocal current = read_record(KEYS[1])\n",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_a_state_partition_that_has_changed_is_not_forgotten[redis-epoch]",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis keeps the JSON of a state partition that was forgotten",
        (
            "adapters/redis/store.py",
            "        keys = [key, layout.states_key(*cell), layout.json_key(*cell)]\n",
            "        keys = [key, layout.states_key(*cell)]\n",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_what_was_forgotten_is_as_if_it_had_never_been[redis]",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis forgets locations by their epoch alone",
        (
            "adapters/redis/scripts.py",
            "if current[1] == ARGV[1] and current[2] == ARGV[2] then redis.call('DEL', KEYS[1]) end",
            "if current[1] == ARGV[1] then redis.call('DEL', KEYS[1]) end",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_locations_are_forgotten_by_whoever_knows_them[redis]",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis writes no more than one chunk of arguments",
        (
            "adapters/redis/scripts.py",
            "  for i = first, last, 4000 do\n",
            "  for i = first, math.min(last, first + 3999), 4000 do\n",
        ),
        tests=("tests/integration/test_redis_store.py::test_steps_larger_than_luas_stack",),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis takes its last state for a key to delete",
        (
            "adapters/redis/scripts.py",
            'each(\'HDEL\', KEYS[2], last + 1, #ARGV)\n"""\n    + _END\n)\n"""Compare and set a header, with rows."""',
            'each(\'HDEL\', KEYS[2], last, #ARGV)\n"""\n    + _END\n)\n"""Compare and set a header, with rows."""',
        ),
        tests=("tests/contract/test_state_store.py::test_a_state_is_never_taken_for_a_key[redis]",),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis looks for the right to delete a hash after it has written states",
        (
            "adapters/redis/scripts.py",
            '    + _COMPARE\n    + """\nfor i = 3, #KEYS do\n  if redis.acl_check_cmd and',
            '    + _COMPARE\n    + _ROWS\n    + """\nfor i = 3, #KEYS do\n  if redis.acl_check_cmd and',
        ),
        tests=(
            "tests/integration/test_redis_store.py::test_the_right_to_delete_hashes_is_checked_before_states_are_written",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis reads the header before the states alone",
        (
            "adapters/redis/store.py",
            "        return (told if before == after else before), states, told\n",
            "        return (told if before == after else before), states, before\n",
        ),
        tests=(
            "tests/integration/test_redis_store.py::test_a_write_between_two_round_trips_of_a_read_is_seen",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis replaces the header before the rows",
        (
            "adapters/redis/scripts.py",
            "local last = 13 + tonumber(ARGV[13])\n",
            "replace(KEYS[1], 7)\nlocal last = 13 + tonumber(ARGV[13])\n",
        ),
        tests=("tests/integration/test_redis_store.py::test_keys_of_another_program_are_not_overwritten",),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis takes an absent field for an empty one",
        (
            "adapters/redis/scripts.py",
            "    if record[i] then have = '=' .. record[i] end\n",
            "    if record[i] and record[i] ~= '' then have = '=' .. record[i] end\n",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_no_cursor_and_the_cursor_of_the_empty_key_are_told_apart[redis]",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis compares all fields of a record but the last",
        (
            "adapters/redis/scripts.py",
            "  for i = 1, #fields do\n    local have",
            "  for i = 1, #fields - 1 do\n    local have",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_a_header_that_differs_in_any_field_refuses_rows[redis-None-cursor]",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis keeps a field that the new record does not have",
        (
            "adapters/redis/scripts.py",
            "      redis.call('HDEL', key, fields[i])\n",
            "      if i == 1 then redis.call('HDEL', key, fields[i]) end\n",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_a_persist_in_chunks_goes_from_cursor_to_cursor[redis]",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis drops the oldest plan that is to be kept",
        ("adapters/redis/scripts.py", "  if number < ARGV[11] then", "  if number <= ARGV[11] then"),
        tests=(
            "tests/contract/test_state_store.py::test_plans_are_dropped_by_number_and_not_by_text[redis]",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis beats for a claim that was given back",
        ("adapters/redis/scripts.py", "if ARGV[2] == '' or current[1]", "if current[1]"),
        tests=("tests/contract/test_state_store.py::test_nobody_holds_a_released_claim[redis]",),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis compares no epoch before it beats",
        (
            "adapters/redis/scripts.py",
            "if ARGV[2] == '' or current[1] ~= ARGV[1] or current[2]",
            "if ARGV[2] == '' or current[2]",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_only_the_holder_of_the_claim_moves_the_heartbeat[redis]",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis replaces locations by equally old ones",
        (
            "adapters/redis/scripts.py",
            "current[1] .. current[2] >= ARGV[1]",
            "current[1] .. current[2] > ARGV[1]",
        ),
        tests=("tests/contract/test_state_store.py::test_locations_never_go_back[redis]",),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis keeps locations of stages that are gone",
        (
            "adapters/redis/scripts.py",
            "for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do redis.call('HDEL', KEYS[1], name) end\n",
            "",
        ),
        tests=("tests/contract/test_state_store.py::test_locations_are_replaced_as_a_whole[redis]",),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis keeps the JSON of a state that was deleted",
        ("adapters/redis/scripts.py", "each('HDEL', KEYS[3], last_json + 1, #ARGV)\n", ""),
        tests=(
            "tests/contract/test_state_store.py::test_views_are_written_and_deleted_with_their_states[redis]",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis keeps a hash's fields that the new view does not have",
        (
            "adapters/redis/scripts.py",
            "for i = 3, #KEYS do redis.call('DEL', KEYS[i]) end\n",
            "for i = 3 + tonumber(ARGV[last + 1]), #KEYS do redis.call('DEL', KEYS[i]) end\n",
        ),
        tests=("tests/integration/test_redis_store.py::test_the_documented_layout_of_hashes",),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis writes some rows before it checks the user's rights",
        (
            "adapters/redis/scripts.py",
            'if not equals(current, 1) then return current end\n"""\n    + _MAY_WRITE\n)\n',
            'if not equals(current, 1) then return current end\n"""\n)\n',
        ),
        tests=(
            "tests/integration/test_redis_store.py::test_missing_rights_are_a_matter_of_configuration_and_change_nothing",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis sets a home before it compares",
        (
            "adapters/redis/scripts.py",
            "-- The home is replaced last: it is the only record that a retry compares, so it must not be ahead of the plans.\nlocal current = read_record(KEYS[1])\n",
            "local current = read_record(KEYS[1])\nreplace(KEYS[1], 6)\n",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_a_home_that_differs_in_any_field_is_not_replaced[redis-run_id]",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis adds a plan to a home that has changed",
        (
            "adapters/redis/scripts.py",
            'local current = read_record(KEYS[1])\nif not equals(current, 1) then return current end\n"""\n    + _MAY_WRITE\n    + """\nlocal numbers',
            'local current = read_record(KEYS[1])\nif #ARGV > 11 then redis.call(\'HSET\', KEYS[2], ARGV[12], ARGV[13]) end\nif not equals(current, 1) then return current end\n"""\n    + _MAY_WRITE\n    + """\nlocal numbers',
        ),
        tests=("tests/contract/test_state_store.py::test_a_refused_step_drops_no_plan[redis]",),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis keeps a plan that is below its own limit",
        ("adapters/redis/scripts.py", "  numbers[#numbers + 1] = ARGV[12]\n", ""),
        tests=(
            "tests/contract/test_state_store.py::test_a_plan_below_its_own_limit_is_dropped_at_once[redis]",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis compares numbers of plans as numbers",
        (
            "adapters/redis/scripts.py",
            "  if number < ARGV[11] then",
            "  if tonumber(number) < tonumber(ARGV[11]) then",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_numbers_that_no_double_can_hold_are_compared_exactly[redis]",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis compares texts of numbers without a fixed width",
        ("adapters/redis/layout.py", '    return b"%0*d" % (_DIGITS, number)', '    return b"%d" % number'),
        tests=(
            "tests/contract/test_state_store.py::test_plans_are_dropped_by_number_and_not_by_text[redis]",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis forgets a home that has changed",
        (
            "adapters/redis/scripts.py",
            "-- KEYS: home, beat, plans. ARGV: 1-5 the home before.\nlocal current = read_record(KEYS[1])\nif not equals(current, 1) then return current end\n",
            "-- KEYS: home, beat, plans. ARGV: 1-5 the home before.\nlocal current = read_record(KEYS[1])\n",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_what_was_forgotten_is_as_if_it_had_never_been[redis]",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis keeps the heartbeat of a flow that was forgotten",
        (
            "adapters/redis/store.py",
            "        keys = [key, layout.beat_key(flow), layout.plans_key(flow)]\n        current",
            "        keys = [key, layout.plans_key(flow)]\n        current",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_what_was_forgotten_is_as_if_it_had_never_been[redis]",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis beats for another run of the same epoch",
        ("adapters/redis/scripts.py", " or current[2] ~= ARGV[2] then return 0 end", " then return 0 end"),
        tests=(
            "tests/contract/test_state_store.py::test_only_the_holder_of_the_claim_moves_the_heartbeat[redis]",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis begins a new claim with a new heartbeat counter",
        (
            "adapters/redis/scripts.py",
            "replace(KEYS[1], 6)\nreturn read_record(KEYS[1])",
            "replace(KEYS[1], 6)\nredis.call('DEL', string.gsub(KEYS[1], ':home$', ':beat'))\nreturn read_record(KEYS[1])",
        ),
        tests=("tests/contract/test_state_store.py::test_a_new_claim_keeps_the_heartbeat_counter[redis]",),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis says what it wanted to write, not what is there",
        ("adapters/redis/scripts.py", '_END: Final = """\nreplace(KEYS[1], 7)\n', '_END: Final = """\n'),
        tests=("tests/contract/test_state_store.py::test_rows_and_header_are_written_together[redis]",),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis looks for a hash of JSON after it has written states",
        (
            "adapters/redis/scripts.py",
            '    + _COMPARE\n    + """\nredis.call(\'HGET\', KEYS[3], \'\')  -- fails here, before any write, if it is not a hash\n"""\n    + _ROWS\n    + """\n',
            "    + _COMPARE\n    + _ROWS\n    + \"\"\"\nredis.call('HGET', KEYS[3], '')\n",
        ),
        tests=("tests/integration/test_redis_store.py::test_a_view_on_another_programs_key_changes_nothing",),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis takes an empty cursor for none",
        (
            "adapters/redis/layout.py",
            '        b"" if header.cursor is None else b"=" + header.cursor,',
            '        b"=" + header.cursor if header.cursor else b"",',
        ),
        tests=(
            "tests/contract/test_state_store.py::test_no_cursor_and_the_cursor_of_the_empty_key_are_told_apart[redis]",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
    mutant(
        "Redis does not check whether it evicts",
        ("adapters/redis/store.py", '    "maxmemory-policy": "noeviction",\n', ""),
        tests=(
            "tests/integration/test_redis_store.py::test_each_weak_setting_is_named_with_the_option_that_accepts_it",
        ),
        unsimulated="not simulated: Redis itself",
        servers=True,
    ),
)
