"""The compare-and-set of each store."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "memory compares epochs alone when a home record is set",
        (
            "adapters/memory/store.py",
            "            if found.home == before:\n                found.home = after",
            "            if (found.home and found.home.epoch) == (before and before.epoch):\n                found.home = after",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_a_home_that_differs_in_any_field_is_not_replaced[memory-run_id]",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "memory compares no run ids of headers",
        (
            "adapters/memory/store.py",
            "            if found.header == before:\n                for",
            "            if found.header == before or (\n                found.header and before and found.header.plan_id == before.plan_id and found.header.cursor == before.cursor\n            ):\n                for",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_a_header_that_differs_in_any_field_refuses_rows[memory-None-run_id]",
        ),
        schedules=200,
    ),
    mutant(
        "memory writes rows before it compares",
        (
            "adapters/memory/store.py",
            "            if found.header == before:\n                for",
            "            if found.header != before:\n                found.states.update((key, state) for key, state in rows if state is not None)\n            if found.header == before:\n                for",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_a_header_that_differs_in_any_field_refuses_rows[memory-None-run_id]",
        ),
        schedules=200,
    ),
    mutant(
        "memory drops the oldest plan that is to be kept",
        ("adapters/memory/store.py", "if number < drop_below]:", "if number <= drop_below]:"),
        tests=(
            "tests/contract/test_state_store.py::test_plans_are_dropped_by_number_and_not_by_text[memory]",
        ),
        schedules=200,
    ),
    mutant(
        "memory beats for a claim that was given back",
        (
            "adapters/memory/store.py",
            "            if home is None or not run_id or (home.epoch, home.run_id) != (epoch, run_id):",
            "            if home is None or (home.epoch, home.run_id) != (epoch, run_id):",
        ),
        tests=("tests/contract/test_state_store.py::test_nobody_holds_a_released_claim[memory]",),
        unsimulated="not simulated: runs do not beat there",
    ),
    mutant(
        "memory replaces locations by equally old ones",
        (
            "adapters/memory/store.py",
            "            if current is None or current.age < after.age:",
            "            if current is None or current.age <= after.age:",
        ),
        tests=("tests/contract/test_state_store.py::test_locations_never_go_back[memory]",),
        unsimulated="not simulated: nobody outside reads states there",
    ),
    mutant(
        "memory keeps the view of a state that was deleted",
        ("adapters/memory/store.py", "                        found.views.pop(key, None)\n", ""),
        tests=(
            "tests/contract/test_state_store.py::test_views_are_written_and_deleted_with_their_states[memory]",
        ),
        unsimulated="not simulated: no states with a view are deleted there",
    ),
    mutant(
        "SQLite compares before it has the write lock",
        (
            "adapters/sqlite/file.py",
            '"BEGIN IMMEDIATE" if write else "BEGIN")',
            '"BEGIN" if write else "BEGIN")',
        ),
        tests=("tests/contract/test_state_store.py::test_competitors_never_win_together[sqlite]",),
        unsimulated="not simulated: SQLite itself",
    ),
    mutant(
        "SQLite acknowledges what is not on disk",
        (
            "adapters/sqlite/file.py",
            '    connection.execute("PRAGMA synchronous = FULL")',
            '    connection.execute("PRAGMA synchronous = NORMAL")',
        ),
        tests=("tests/unit/stores/test_sqlite_store.py::test_its_settings_survive_a_power_failure",),
        unsimulated="not simulated: SQLite itself",
    ),
    mutant(
        "SQLite writes states of a header that has changed",
        (
            "adapters/sqlite/store.py",
            "            current = _header(connection, cell)\n            if current != before:\n                return current\n            connection.executemany",
            "            current = _header(connection, cell)\n            if current != before and (current is None or before is None or current.epoch != before.epoch):\n                return current\n            connection.executemany",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_a_header_that_differs_in_any_field_refuses_rows[sqlite-None-run_id]",
        ),
        unsimulated="not simulated: SQLite itself",
    ),
    mutant(
        "SQLite beats for a claim that was given back",
        ("adapters/sqlite/store.py", " AND run_id = ? AND run_id <> ''\",", ' AND run_id = ?",'),
        tests=("tests/contract/test_state_store.py::test_nobody_holds_a_released_claim[sqlite]",),
        unsimulated="not simulated: SQLite itself",
    ),
    mutant(
        "SQLite drops the oldest plan that is to be kept",
        ("adapters/sqlite/store.py", 'flow = ? AND number < ?"', 'flow = ? AND number <= ?"'),
        tests=(
            "tests/contract/test_state_store.py::test_plans_are_dropped_by_number_and_not_by_text[sqlite]",
        ),
        unsimulated="not simulated: SQLite itself",
    ),
    mutant(
        "SQLite sets the heartbeat back with the home record",
        (
            "adapters/sqlite/store.py",
            "after.number, after.plan_id, beat),",
            "after.number, after.plan_id, 0),",
        ),
        tests=("tests/contract/test_state_store.py::test_a_new_claim_keeps_the_heartbeat_counter[sqlite]",),
        unsimulated="not simulated: SQLite itself",
    ),
    mutant(
        "SQLite keeps the view of the state before",
        (
            "adapters/sqlite/store.py",
            'DO UPDATE SET state = excluded.state, shown = excluded.shown"',
            'DO UPDATE SET state = excluded.state"',
        ),
        tests=("tests/contract/test_state_store.py::test_rows_without_a_view_show_nothing[sqlite]",),
        unsimulated="not simulated: SQLite itself",
    ),
    mutant(
        "SQLite replaces locations by equally old ones",
        (
            "adapters/sqlite/store.py",
            "            if current is not None and current.age >= after.age:",
            "            if current is not None and current.age > after.age:",
        ),
        tests=("tests/contract/test_state_store.py::test_locations_never_go_back[sqlite]",),
        unsimulated="not simulated: SQLite itself",
    ),
    mutant(
        "SQLite forgets a home record with its heartbeat, not its plans",
        (
            "adapters/sqlite/store.py",
            '            for table in ("homes", "plans"):',
            '            for table in ("homes",):',
        ),
        tests=(
            "tests/contract/test_state_store.py::test_what_was_forgotten_is_as_if_it_had_never_been[sqlite]",
        ),
        unsimulated="not simulated: SQLite itself",
    ),
)
