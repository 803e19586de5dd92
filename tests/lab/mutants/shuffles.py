"""The order of units after a shuffle, and what they carry through it."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "units that are packed apart are not brought into order",
        (
            "engines/units.py",
            "                units.sort()  # nearly free, they should be in order already; but merging depends on it\n",
            "",
        ),
        tests=(
            "tests/unit/engines/test_order_of_units.py::test_a_packer_brings_units_into_order_that_come_in_another_one",
        ),
        unsimulated="not simulated: all tasks of a batch run in one process there",
    ),
    mutant(
        "a unit that equals the first of the next blob is given too soon",
        (
            "engines/units.py",
            "            final = bisect_left(held, first)",
            "            final = min(len(held), bisect_left(held, first) + 1)",
        ),
        tests=(
            "tests/unit/engines/test_spark_rows.py::test_units_of_many_tasks_come_in_the_order_of_tuples",
        ),
        unsimulated="not simulated: all tasks of a batch run in one process there",
    ),
    mutant(
        "what is held of blobs that overlap is given twice",
        ("engines/units.py", "            del held[:final]\n", ""),
        tests=(
            "tests/unit/engines/test_spark_rows.py::test_units_of_many_tasks_come_in_the_order_of_tuples",
        ),
        unsimulated="not simulated: all tasks of a batch run in one process there",
    ),
    mutant(
        "units that are held at the end are lost",
        ("engines/units.py", "    yield from held\n\n\ndef cut", "\n\ndef cut"),
        tests=(
            "tests/unit/engines/test_spark_rows.py::test_units_of_many_tasks_come_in_the_order_of_tuples",
        ),
        unsimulated="not simulated: all tasks of a batch run in one process there",
    ),
    mutant(
        "a blob is named by the last unit in it",
        (
            "engines/units.py",
            "                    yield piece[0][:6], marshal.dumps(piece)",
            "                    yield piece[-1][:6], marshal.dumps(piece)",
        ),
        tests=(
            "tests/unit/engines/test_spark_rows.py::test_units_of_many_tasks_come_in_the_order_of_tuples",
        ),
        unsimulated="not simulated: all tasks of a batch run in one process there",
    ),
    mutant(
        "the last piece of units is lost",
        (
            "engines/units.py",
            "    if start < len(records):\n        yield records[start:]",
            "    if start < len(records) - 1:\n        yield records[start:]",
        ),
        tests=(
            "tests/unit/engines/test_spark_rows.py::test_units_of_many_tasks_come_in_the_order_of_tuples",
        ),
        unsimulated="not simulated: all tasks of a batch run in one process there",
    ),
    mutant(
        "units that were packed are packed again",
        (
            "engines/units.py",
            "                self._units[key] = []",
            "                self._units[key] = units[:0] or units",
        ),
        tests=(
            "tests/unit/engines/test_spark_rows.py::test_units_of_many_tasks_come_in_the_order_of_tuples",
        ),
        unsimulated="not simulated: all tasks of a batch run in one process there",
    ),
    mutant(
        "Spark brings blobs into order without their paths",
        (
            "engines/spark/rows.py",
            'ORDER = ("part", "stage", "topic", "partition", "offset", "path")',
            'ORDER = ("part", "stage", "topic", "partition", "offset")',
        ),
        tests=(
            "tests/unit/engines/test_order_of_units.py::test_pieces_of_one_input_are_brought_into_the_order_of_their_paths",
        ),
        unsimulated="not simulated: all tasks of a batch run in one process there",
    ),
    mutant(
        "Spark brings blobs into order by offset before the partition",
        (
            "engines/spark/rows.py",
            'ORDER = ("part", "stage", "topic", "partition", "offset", "path")',
            'ORDER = ("part", "stage", "topic", "offset", "partition", "path")',
        ),
        tests=(
            "tests/unit/engines/test_spark_rows.py::test_units_of_many_tasks_come_in_the_order_of_tuples",
        ),
        unsimulated="not simulated: all tasks of a batch run in one process there",
    ),
    mutant(
        "Spark tells the failure of a task to the first state partition alone",
        ("engines/spark/rows.py", "for part in range(self._parts)])", "for part in range(1)])"),
        tests=(
            "tests/unit/engines/test_spark_rows.py::test_a_failure_reaches_every_task_behind_the_shuffle_before_any_unit",
        ),
        unsimulated="not simulated: all tasks of a batch run in one process there",
    ),
    mutant(
        "Spark's tasks do not pass results on",
        ("engines/spark/rows.py", "            results.append(blob)\n", "            pass\n"),
        tests=(
            "tests/unit/engines/test_spark_rows.py::test_units_of_many_tasks_come_in_the_order_of_tuples",
        ),
        unsimulated="not simulated: all tasks of a batch run in one process there",
    ),
    mutant(
        "a worker takes parcels in the order in which they were sent",
        ("engines/workers/tasks.py", '        parcels.sort(key=attrgetter("first"))\n', ""),
        tests=(
            "tests/unit/engines/test_order_of_units.py::test_workers_fold_by_partition_and_offset_whoever_has_read",
        ),
        unsimulated="not simulated: all tasks of a batch run in one process there",
    ),
    mutant(
        "a worker writes its parcels over each other",
        (
            "engines/workers/tasks.py",
            "            self._end, rest = self._end + written, rest[written:]",
            "            rest = rest[written:]",
        ),
        tests=("tests/unit/engines/test_workers.py::test_units_in_outboxes_come_in_order",),
        unsimulated="not simulated: all tasks of a batch run in one process there",
    ),
    mutant(
        "in one process units come in the order in which they were made",
        (
            "task/serial.py",
            "        rows = sorted(units.pop(level, ()))",
            "        rows = units.pop(level, [])",
        ),
        tests=("tests/protocol/test_lanes.py::test_one_root_through_two_partitions_of_the_topic_in_between",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "units of one input keep what was carried for the one before",
        (
            "task/level.py",
            "            if origin is not last:  # units of one input follow each other: pack it once",
            "            if last is None:",
        ),
        tests=(
            "tests/protocol/test_carried.py::test_each_input_of_a_batch_is_known_by_what_it_carries_itself",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "units of an offset share their origin whatever partition it is of",
        (
            "task/level.py",
            "        source = stage, topic, partition, offset\n",
            "        source = stage, topic, 0, offset\n",
        ),
        tests=(
            "tests/protocol/test_carried.py::test_inputs_of_two_partitions_with_one_offset_are_two_inputs",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "units share their origin across stages",
        (
            "task/level.py",
            "        source = stage, topic, partition, offset\n",
            "        source = 0, topic, partition, offset\n",
        ),
        tests=(
            "tests/protocol/test_carried.py::test_a_stage_that_needs_little_does_not_decide_what_the_next_one_is_given",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "what is carried through a shuffle is only what the stage itself needs",
        (
            "task/level.py",
            "        need = max(need, node.needs)\n        pending += flow.children[node.index]\n",
            "        pending += flow.children[node.index]\n",
        ),
        tests=(
            "tests/protocol/test_carried.py::test_a_stage_that_needs_little_does_not_decide_what_the_next_one_is_given",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "units go by the path before the offset",
        (
            "task/level.py",
            "                    tp.partition,\n                    origin.offset,\n                    path,\n",
            "                    tp.partition,\n                    origin.offset >> 1,\n                    path,\n",
        ),
        tests=("tests/protocol/test_lanes.py::test_emissions_beside_changes_into_one_topic",),
        schedules=100,
    ),
    mutant(
        "units of the next stage are folded with those of the one before",
        (
            "task/level.py",
            "        if row[0] != part or row[1] != stage or len(pending) >= BLOCK:",
            "        if row[0] != part or len(pending) >= BLOCK:",
        ),
        tests=(
            "tests/protocol/test_carried.py::test_a_stage_that_needs_little_does_not_decide_what_the_next_one_is_given",
        ),
        schedules=100,
    ),
    mutant(
        "a unit of a key that another state partition owns is not counted as misplaced",
        (
            "task/stage_part.py",
            "        return len(misplaced)\n\n    def resume",
            "        return 0\n\n    def resume",
        ),
        tests=(
            "tests/protocol/test_redo_in_place.py::test_a_key_that_lies_elsewhere_is_not_forgotten_when_its_neighbour_is_done",
        ),
        schedules=100,
    ),
)
