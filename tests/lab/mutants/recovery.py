"""What a run finds after a crash or a rollback, and what it does: recovery, redo, cursors and headers."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "a start does not commit what the run before has persisted",
        (
            "protocol/recovery.py",
            "            owned.applier.commit(last)\n        return",
            "            pass\n        return",
        ),
        tests=(
            "tests/protocol/test_commits_again.py::test_a_start_commits_what_the_run_before_has_persisted",
        ),
        unsimulated="not simulated: the next batch commits it, too",
    ),
    mutant(
        "a header that has begun another plan proves that this one was published",
        (
            "protocol/recover.py",
            "header.begun_id == plan.plan_id)\n",
            'header.begun_id != "")\n',
        ),
        tests=("tests/protocol/test_recover.py::test_a_header_that_has_begun_another_plan_proves_nothing",),
        unsimulated="not simulated: recovery has stopped before, where a header has begun a plan that is not the next one",
    ),
    mutant(
        "an upstream header that has begun a plan counts as not there yet",
        (
            "protocol/recover.py",
            "most = max(header.number + (1 if header.begun_id else 0) for header in upstream)",
            "most = max(header.number for header in upstream)",
        ),
        tests=("tests/protocol/test_recover.py::test_no_upstream_header_is_beyond_a_downstream_one",),
        schedules=1400,
    ),
    mutant(
        "a downstream header that has begun a plan counts as at it",
        (
            "protocol/recover.py",
            "least = min(header.number for header in downstream)",
            "least = min(header.number + (1 if header.begun_id else 0) for header in downstream)",
        ),
        tests=("tests/protocol/test_recover.py::test_no_upstream_header_is_beyond_a_downstream_one",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "headers of upstream and downstream stages are not compared",
        ("protocol/recover.py", "    _check_order(headers, level_of)\n", ""),
        tests=("tests/protocol/test_recover.py::test_no_upstream_header_is_beyond_a_downstream_one",),
        schedules=500,
    ),
    mutant(
        "only neighbouring levels are compared, the lowest pair alone",
        (
            "protocol/recover.py",
            "    for level in range(1, max(level_of.values(), default=0)):\n",
            "    for level in range(1, min(2, max(level_of.values(), default=0))):\n",
        ),
        tests=("tests/protocol/test_recover.py::test_every_level_is_compared_with_all_after_it",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a header may have begun a plan that was never sealed",
        (
            "protocol/recover.py",
            "        if begun is None or begun.plan_id != header.begun_id:\n",
            "        if begun is None:\n",
        ),
        tests=(
            "tests/protocol/test_recover.py::test_a_single_header_of_no_plan_or_of_another_history_stops",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a header may be beyond the last plan",
        (
            "protocol/recover.py",
            "    if header.number > last.number:\n",
            "    if header.number > last.number + 1:\n",
        ),
        tests=(
            "tests/protocol/test_recover.py::test_a_single_header_of_no_plan_or_of_another_history_stops",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a header may be at another plan of the same number",
        (
            "protocol/recover.py",
            "    if plan is not None and plan.plan_id != header.plan_id:\n",
            "    if plan is not None and plan.number != header.number:\n",
        ),
        tests=(
            "tests/protocol/test_recover.py::test_a_single_header_of_no_plan_or_of_another_history_stops",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "the plan before the first one to redo need not be kept",
        ("protocol/recover.py", "    for number in (lowest, *numbers):\n", "    for number in numbers:\n"),
        tests=(
            "tests/protocol/test_recover.py::test_the_plan_before_the_first_that_is_redone_has_to_be_kept_too",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "of several plans that are lost only the last is redone",
        (
            "protocol/recover.py",
            "    numbers = list(range(lowest + 1, last.number + 1))\n",
            "    numbers = list(range(last.number, last.number + 1)) if lowest < last.number else []\n",
        ),
        tests=("tests/protocol/test_recover.py::test_no_upstream_header_is_beyond_a_downstream_one",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a begun plan is published again",
        (
            "protocol/recover.py",
            "        header.number >= plan.number or (header.number == before.number and header.begun_id == plan.plan_id)\n",
            "        header.number >= plan.number\n",
        ),
        tests=("tests/protocol/test_recover.py::test_how_far_a_plan_has_come_says_what_is_still_to_do",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a redo publishes nothing",
        (
            "protocol/recover.py",
            "    return Redo(plan, before, not reached,",
            "    return Redo(plan, before, False,",
        ),
        tests=("tests/protocol/test_recover.py::test_how_far_a_plan_has_come_says_what_is_still_to_do",),
        schedules=100,
    ),
    mutant(
        "a redo always publishes",
        (
            "protocol/recover.py",
            "    return Redo(plan, before, not reached,",
            "    return Redo(plan, before, True,",
        ),
        tests=("tests/protocol/test_recover.py::test_how_far_a_plan_has_come_says_what_is_still_to_do",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a redo runs the levels above the last unfinished one",
        ("protocol/recover.py", "max(unfinished) if reached and unfinished else 1 << 30", "1 << 30"),
        tests=("tests/protocol/test_recover.py::test_how_far_a_plan_has_come_says_what_is_still_to_do",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a redo runs only the first unfinished level",
        (
            "protocol/recover.py",
            "max(unfinished) if reached and unfinished else 1 << 30",
            "min(unfinished) if unfinished else 1 << 30",
        ),
        tests=("tests/protocol/test_recover.py::test_how_far_a_plan_has_come_says_what_is_still_to_do",),
        schedules=200,
    ),
    mutant(
        "of an unfinished plan the key at the cursor is folded again",
        (
            "task/states.py",
            "(self.cursor is not None and key <= self.cursor)",
            "(self.cursor is not None and key < self.cursor)",
        ),
        tests=("tests/unit/segment/test_states.py::test_a_key_is_settled_up_to_the_cursor_and_with_it",),
        schedules=200,
    ),
    mutant(
        "the cursor of a begun plan is not read",
        (
            "task/states.py",
            "            self.cursor = found.cursor if found.begun_id else None\n",
            "            self.cursor = None\n",
        ),
        tests=("tests/unit/segment/test_states.py::test_a_key_is_settled_up_to_the_cursor_and_with_it",),
        schedules=200,
    ),
    mutant(
        "a header that moves while states are read is no matter",
        (
            "task/states.py",
            "            if found != self._first:\n",
            "            if found.number < self._first.number:\n",
        ),
        tests=("tests/unit/segment/test_states.py::test_a_header_that_moves_between_two_reads_is_noticed",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "states of a plan of another history are read",
        (
            "task/states.py",
            "found.number == transition.before_number and found.plan_id == transition.before_id",
            "found.number == transition.before_number",
        ),
        tests=("tests/unit/segment/test_states.py::test_what_the_plan_before_has_not_left_is_not_read",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "only the header before a read is looked at",
        (
            "task/states.py",
            "        for header in (before, after):\n",
            "        for header in (before,):\n",
        ),
        tests=(
            "tests/protocol/test_recover.py::test_rows_that_another_run_wrote_meanwhile_are_seen_by_the_header_after_them",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a chunk notes its first key as the cursor",
        (
            "task/states.py",
            "replace(before, begun_id=plan_id, cursor=chunk[-1][0])",
            "replace(before, begun_id=plan_id, cursor=chunk[0][0])",
        ),
        tests=("tests/unit/segment/test_states.py::test_only_the_last_chunk_moves_the_header_to_the_plan",),
        schedules=200,
    ),
    mutant(
        "a chunk that is not the last moves the header to the plan",
        (
            "task/states.py",
            "        after = last if size == len(remaining) else replace(before, begun_id=plan_id, cursor=chunk[-1][0])\n",
            "        after = last\n",
        ),
        tests=("tests/unit/segment/test_states.py::test_only_the_last_chunk_moves_the_header_to_the_plan",),
        schedules=200,
    ),
    mutant(
        "after a lost reply the key at the cursor is written again",
        (
            "task/states.py",
            "remaining = [row for row in remaining if row[0] > stored.cursor]",
            "remaining = [row for row in remaining if row[0] >= stored.cursor]",
        ),
        tests=(
            "tests/unit/segment/test_states.py::test_whatever_reply_is_lost_the_same_call_again_writes_the_rest_and_no_row_twice",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "another plan of the same number counts as written",
        (
            "task/states.py",
            "if stored.number == number and stored.plan_id == plan_id:  # an earlier",
            "if stored.number == number:  # an earlier",
        ),
        tests=(
            "tests/unit/segment/test_states.py::test_a_header_that_is_neither_as_expected_nor_further_on_stops",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a header further back than a write expects is no matter",
        (
            "task/states.py",
            "        ahead = stored.begun_id == plan_id and stored.number == before.number and stored.cursor is not None\n",
            '        ahead = stored.cursor is not None or stored.number <= before.number\n        stored = stored if stored.cursor is not None else replace(stored, cursor=b"")\n',
        ),
        tests=(
            "tests/unit/segment/test_states.py::test_a_header_that_is_neither_as_expected_nor_further_on_stops",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a whole state partition counts as done when one of its buckets is",
        (
            "task/states.py",
            "        return all(cell.done for cell in self._cells.values())",
            "        return any(cell.done for cell in self._cells.values())",
        ),
        tests=(
            "tests/unit/segment/test_states.py::test_a_state_partition_is_done_when_all_of_its_buckets_are",
        ),
        schedules=1200,
    ),
    mutant(
        "a bucket that is done is read again",
        (
            "task/states.py",
            "content = [None] * len(own) if cell.done else cell.rows(own)",
            "content = cell.rows(own)",
        ),
        tests=("tests/unit/segment/test_states.py::test_of_a_bucket_that_is_done_no_state_is_read",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "buckets of a state partition count as untouched when one is",
        (
            "task/states.py",
            "return all(not cell.done and cell.cursor is None for cell in self._cells.values())",
            "return any(not cell.done and cell.cursor is None for cell in self._cells.values())",
        ),
        tests=(
            "tests/unit/segment/test_states.py::test_a_state_partition_is_done_when_all_of_its_buckets_are",
        ),
        schedules=4000,
    ),
    mutant(
        "views are left out of the size of a chunk",
        (
            "task/states.py",
            '        size += len(key) + len(state or b"") + (views.size(key) if views else 0)\n',
            '        size += len(key) + len(state or b"")\n',
        ),
        tests=("tests/unit/segment/test_states.py::test_views_count_for_the_size_of_a_chunk",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a state that cannot be shown stops the service after the seal",
        (
            "task/states.py",
            "        except Exception as error:  # noqa: BLE001 - protobuf's JSON mapping raises errors of several kinds\n",
            "        except LookupError as error:\n",
        ),
        tests=(
            "tests/unit/segment/test_states.py::test_a_state_that_cannot_be_shown_is_shown_as_the_reason",
        ),
        schedules=400,
    ),
)
