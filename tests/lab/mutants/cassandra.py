"""Cassandra: conditions, levels of consistency, batches, and outcomes that are not known."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "Cassandra believes that a write without an answer was done",
        (
            "adapters/cassandra/store.py",
            "            current = self._header(flow, stage, part)\n            if current == before != after:\n                raise\n            return current\n        return self._header(flow, stage, part)\n\n    def scan",
            "            return after\n        return self._header(flow, stage, part)\n\n    def scan",
        ),
        tests=(
            "tests/integration/test_cassandra_store.py::test_a_lost_request_was_not_done_and_may_be_sent_again",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra believes that a home record without an answer was set",
        (
            "adapters/cassandra/store.py",
            "            current = self.home(flow)[0]\n            if current == before != after:\n                raise\n            return current\n        return self.home(flow)[0]\n\n    def beat",
            "            return after\n        return self.home(flow)[0]\n\n    def beat",
        ),
        tests=(
            "tests/integration/test_cassandra_store.py::test_a_lost_request_was_not_done_and_may_be_sent_again",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra takes a write without an answer for one that was not done",
        (
            "adapters/cassandra/store.py",
            "            current = self._header(flow, stage, part)\n            if current == before != after:\n                raise\n            return current\n        return self._header(flow, stage, part)\n\n    def scan",
            "            raise\n        return self._header(flow, stage, part)\n\n    def scan",
        ),
        tests=("tests/integration/test_cassandra_store.py::test_a_lost_answer_is_resolved_by_a_serial_read",),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra says of a write that was not done that another run came first",
        (
            "adapters/cassandra/store.py",
            "            current = self._header(flow, stage, part)\n            if current == before != after:\n                raise\n            return current\n        return self._header(flow, stage, part)\n\n    def scan",
            "            return self._header(flow, stage, part)\n        return self._header(flow, stage, part)\n\n    def scan",
        ),
        tests=(
            "tests/integration/test_cassandra_store.py::test_a_lost_request_was_not_done_and_may_be_sent_again",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra says what it wanted to write, though another run has written",
        (
            "adapters/cassandra/store.py",
            "                raise\n            return current\n        return self._header(flow, stage, part)\n\n    def scan",
            "                raise\n            return after\n        return self._header(flow, stage, part)\n\n    def scan",
        ),
        tests=(
            "tests/integration/test_cassandra_store.py::test_an_answer_lost_to_a_step_that_another_run_made_pointless",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra reads homes at quorum",
        (
            "adapters/cassandra/store.py",
            "        return layout.home_of(self._client.rows((self._cql.read_home, (flow,)), serial=True), flow)",
            "        return layout.home_of(self._client.rows((self._cql.read_home, (flow,))), flow)",
        ),
        tests=(
            "tests/integration/test_cassandra_store.py::test_what_decides_is_read_and_written_at_serial_consistency",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra reads headers at quorum",
        ("adapters/cassandra/store.py", "for cell in cells], serial=True)", "for cell in cells])"),
        tests=(
            "tests/integration/test_cassandra_store.py::test_what_decides_is_read_and_written_at_serial_consistency",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra reads locations at quorum",
        (
            "adapters/cassandra/store.py",
            "self._client.rows((self._cql.read_locations, (flow,)), serial=True)",
            "self._client.rows((self._cql.read_locations, (flow,)))",
        ),
        tests=(
            "tests/integration/test_cassandra_store.py::test_what_decides_is_read_and_written_at_serial_consistency",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra reads states at the level of one node",
        (
            "adapters/cassandra/client.py",
            "consistency_level=ConsistencyLevel.name_to_value[settings.consistency],",
            "consistency_level=ConsistencyLevel.ONE,",
        ),
        tests=(
            "tests/integration/test_cassandra_store.py::test_what_decides_is_read_and_written_at_serial_consistency",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra compares across data centres whatever the address says",
        ("adapters/cassandra/client.py", "                    serial_consistency_level=self._serial,\n", ""),
        tests=(
            "tests/integration/test_cassandra_store.py::test_what_decides_is_read_and_written_at_serial_consistency",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra logs a batch of one partition",
        ("adapters/cassandra/client.py", "BatchType.UNLOGGED", "BatchType.LOGGED"),
        tests=(
            "tests/integration/test_cassandra_store.py::test_what_decides_is_read_and_written_at_serial_consistency",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra reads the header once",
        (
            "adapters/cassandra/store.py",
            "        return first, [found.get(key) for key in keys], self._header(flow, stage, part)\n",
            "        return first, [found.get(key) for key in keys], first\n",
        ),
        tests=(
            "tests/integration/test_cassandra_store.py::test_a_write_between_the_reads_of_a_header_is_seen",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra reads states before the header",
        (
            "adapters/cassandra/store.py",
            "        first = self._header(flow, stage, part)\n        found = self._states(layout.partition_key(flow, stage, part), list(dict.fromkeys(keys)))\n",
            "        found = self._states(layout.partition_key(flow, stage, part), list(dict.fromkeys(keys)))\n        first = self._header(flow, stage, part)\n",
        ),
        tests=(
            "tests/integration/test_cassandra_store.py::test_a_write_between_the_reads_of_a_header_is_seen",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra beats for a claim that was given back",
        (
            "adapters/cassandra/store.py",
            "            if home is None or not run_id or (home.epoch, home.run_id) != (epoch, run_id):",
            "            if home is None or (home.epoch, home.run_id) != (epoch, run_id):",
        ),
        tests=("tests/contract/test_state_store.py::test_nobody_holds_a_released_claim[cassandra]",),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra compares with a first heartbeat of 0",
        (
            "adapters/cassandra/store.py",
            "            values = (beat + 1, flow, epoch, run_id, beat or None)\n",
            "            values = (beat + 1, flow, epoch, run_id, beat)\n",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_only_the_holder_of_the_claim_moves_the_heartbeat[cassandra]",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra adds and drops one plan in one batch",
        (
            "adapters/cassandra/store.py",
            "        if plan is not None and after.number >= drop_below:",
            "        if plan is not None:",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_a_plan_below_its_own_limit_is_dropped_at_once[cassandra]",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra drops the oldest plan that is to be kept",
        (
            "adapters/cassandra/layout.py",
            'self.drop_plans = f"DELETE FROM {flows} WHERE {_FLOW} AND plan_number < ?"',
            'self.drop_plans = f"DELETE FROM {flows} WHERE {_FLOW} AND plan_number <= ?"',
        ),
        tests=(
            "tests/contract/test_state_store.py::test_plans_are_dropped_by_number_and_not_by_text[cassandra]",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra compares homes by their epochs alone",
        (
            "adapters/cassandra/layout.py",
            'self.set_home = f"UPDATE {flows} SET {_values(HOME_COLUMNS)} WHERE {_FLOW} IF {_equal(HOME_COLUMNS)}"',
            'self.set_home = f"UPDATE {flows} SET {_values(HOME_COLUMNS)} WHERE {_FLOW} IF epoch = ?"',
        ),
        (
            "adapters/cassandra/store.py",
            "        values = (*layout.home_values(after), flow, *layout.home_values(before))\n        statements",
            "        values = (*layout.home_values(after), flow, layout.home_values(before)[0])\n        statements",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_a_home_that_differs_in_any_field_is_not_replaced[cassandra-run_id]",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra compares headers without their cursor",
        (
            "adapters/cassandra/layout.py",
            '            f"UPDATE {states} SET {_values(HEADER_COLUMNS)} WHERE {_PART} IF {_equal(HEADER_COLUMNS)}"',
            '            f"UPDATE {states} SET {_values(HEADER_COLUMNS)} WHERE {_PART} IF {_equal(HEADER_COLUMNS[:-1])}"',
        ),
        (
            "adapters/cassandra/store.py",
            "        statements: list[Statement] = [(self._cql.set_header, (*values, *cell, *condition))]\n        if before",
            "        statements: list[Statement] = [(self._cql.set_header, (*values, *cell, *condition[:-1]))]\n        if before",
        ),
        (
            "adapters/cassandra/store.py",
            "        statements: list[Statement] = [(self._cql.set_header, values), (self._cql.drop_states, cell)]",
            "        statements: list[Statement] = [(self._cql.set_header, values[:-1]), (self._cql.drop_states, cell)]",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_a_header_that_differs_in_any_field_refuses_rows[cassandra-None-cursor]",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra replaces locations by equally old ones",
        (
            "adapters/cassandra/store.py",
            "(current and current.age >= after.age):",
            "(current and current.age > after.age):",
        ),
        tests=("tests/contract/test_state_store.py::test_locations_never_go_back[cassandra]",),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra takes the anchor for a state",
        (
            "adapters/cassandra/store.py",
            "            found = [(key, value) for key, value in page if value is not None]  # None: the anchor\n",
            '            found = [(key, value or b"") for key, value in page]\n',
        ),
        tests=(
            "tests/integration/test_cassandra_store.py::test_the_row_that_stands_beside_the_states_is_no_state",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra keeps locations of stages that are gone",
        (
            "adapters/cassandra/store.py",
            "        removed = before.stages.keys() - stages.keys() if before else ()\n",
            "        removed = ()\n",
        ),
        tests=("tests/contract/test_state_store.py::test_locations_are_replaced_as_a_whole[cassandra]",),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra writes a large state beside its header",
        (
            "adapters/cassandra/store.py",
            "            if state is not None and len(key) + len(state) > self.max_bytes:",
            "            if False:",
        ),
        tests=("tests/integration/test_cassandra_store.py::test_a_large_state_is_one_conditional_update",),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra forgets a home that has changed",
        (
            "adapters/cassandra/store.py",
            "            if self._client.compare_and_set(statements):\n                return None\n        except Unavailable:\n            current = self.home(flow)[0]",
            "            self._client.compare_and_set(statements)\n            return None\n        except Unavailable:\n            current = self.home(flow)[0]",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_what_was_forgotten_is_as_if_it_had_never_been[cassandra]",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra keeps the states of a state partition that was forgotten",
        (
            "adapters/cassandra/store.py",
            "(self._cql.set_header, values), (self._cql.drop_states, cell)]",
            "(self._cql.set_header, values)]",
        ),
        tests=(
            "tests/contract/test_state_store.py::test_what_was_forgotten_is_as_if_it_had_never_been[cassandra]",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
    mutant(
        "Cassandra keeps the plans of a flow that was forgotten",
        ("adapters/cassandra/store.py", ", (self._cql.drop_all_plans, (flow, 0))]", "]"),
        tests=(
            "tests/contract/test_state_store.py::test_what_was_forgotten_is_as_if_it_had_never_been[cassandra]",
        ),
        unsimulated="not simulated: Cassandra itself",
        servers=True,
    ),
)
