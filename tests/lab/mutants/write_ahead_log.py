"""The write-ahead log: its files, what is acknowledged, and what is published again."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "bytes after the last record of a group are no matter",
        ("ext/wal/segment.py", "    if position != len(found.frames):\n", "    if False:\n"),
        tests=("tests/unit/wal/test_strange_files.py::test_what_was_never_written_so_is_damage",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "a record may be for one partition more than there are",
        ("ext/wal/segment.py", "one[0] >= len(sequences)", "one[0] > len(sequences)"),
        tests=("tests/unit/wal/test_strange_files.py::test_what_was_never_written_so_is_damage",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "a segment may have another name than its header says",
        ("ext/wal/segment.py", " or name != segment_name(base, epoch):", ":"),
        tests=("tests/unit/wal/test_strange_files.py::test_a_segment_under_another_name_is_refused",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "any rest that is shorter than a head is a torn tail",
        (
            "ext/wal/segment.py",
            "        if _GROUP_BEGIN.startswith(rest[: len(_GROUP_BEGIN)]):\n",
            "        if True:\n",
        ),
        tests=("tests/unit/wal/test_strange_files.py::test_what_was_never_written_so_is_damage",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "what a kill left in memory is published without being synced",
        ("ext/wal/recovery.py", "    files.sync(segments[-1].name)\n", ""),
        tests=(
            "tests/unit/wal/test_crashes.py::test_what_a_kill_left_in_memory_is_durable_before_anything_is_built_on_it",
        ),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "what an attempt has left stays in the directory",
        (
            "ext/wal/recovery.py",
            "        if name.endswith(TEMPORARY):\n            files.remove(name)\n",
            "        del name\n",
        ),
        tests=(
            "tests/unit/wal/test_strange_files.py::test_what_was_being_created_when_the_process_died_is_removed",
        ),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "a segment that was published entirely is needed",
        (
            "ext/wal/recovery.py",
            "        if segment.end > position.published:\n            first = index",
            "        if segment.end >= position.published:\n            first = index",
        ),
        tests=(
            "tests/unit/wal/test_strange_files.py::test_segments_that_were_published_entirely_are_deleted_by_whoever_opens_the_log",
        ),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "one record that is missing between segments is not missed",
        (
            "ext/wal/recovery.py",
            "        if segment.base > expected:\n",
            "        if segment.base > expected + 1:\n",
        ),
        tests=(
            "tests/unit/wal/test_strange_files.py::test_a_single_record_that_is_missing_between_two_segments_is_missed",
        ),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "the groups of a segment need not follow each other",
        ("ext/wal/recovery.py", "            if found.first != segment.end:\n", "            if False:\n"),
        tests=("tests/unit/wal/test_strange_files.py::test_what_was_never_written_so_is_damage",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "a group is acknowledged before it is synced",
        (
            "ext/wal/tail.py",
            "            self._write(segment, data)\n            self._files.sync(segment.name)\n",
            "            self._write(segment, data)\n",
        ),
        tests=("tests/unit/wal/test_crashes.py::test_a_crash_at_every_call",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "a group counts without its end",
        (
            "ext/wal/segment.py",
            "    if window[end : end + len(_GROUP_END)] != _GROUP_END:\n        return None\n",
            "",
        ),
        tests=("tests/unit/wal/test_log.py::test_a_tail_that_was_cut_anywhere_is_recognised",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "the head of a group is not checked",
        (
            "ext/wal/segment.py",
            "len(window) < end + len(_GROUP_END) or not _head_is_sound(window, at):",
            "len(window) < end + len(_GROUP_END):",
        ),
        tests=("tests/unit/wal/test_log.py::test_a_changed_bit_anywhere_is_an_error_and_nothing_is_skipped",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "the header of a segment is not checked",
        (
            "ext/wal/segment.py",
            "    if len(found) < size or _CRC.pack(crc32(found[: -_CRC.size])) != found[-_CRC.size :]:\n",
            "    if len(found) < size:\n",
        ),
        tests=("tests/unit/wal/test_log.py::test_a_changed_bit_anywhere_is_an_error_and_nothing_is_skipped",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "a segment of another log is read",
        (
            "ext/wal/segment.py",
            "    if (magic, owner, count) != (MAGIC, log_id, partitions)",
            "    if (magic, count) != (MAGIC, partitions)",
        ),
        tests=("tests/unit/wal/test_log.py::test_a_segment_of_another_log_is_refused",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "a group with another one after it was being written",
        (
            "ext/wal/segment.py",
            "    if len(rest) >= _GROUP_HEAD and _head_is_sound(rest, 0) and len(rest) > _size_of(rest):\n        return False",
            "    if False:\n        return False",
        ),
        tests=("tests/unit/wal/test_log.py::test_sectors_that_are_zeros_after_they_were_synced_are_damage",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "sectors are counted from the beginning of a group",
        (
            "ext/wal/segment.py",
            "range(SECTOR - at % SECTOR, len(rest), SECTOR)",
            "range(SECTOR, len(rest), SECTOR)",
        ),
        tests=(
            "tests/unit/wal/test_log.py::test_a_group_of_which_some_sectors_were_not_written_is_a_torn_tail",
        ),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "what follows a torn group is no matter",
        (
            "ext/wal/segment.py",
            '    if len(rest) < _size_of(rest):\n        raise TornTail\n    raise damaged(files, segment, at, "a group does not end as it should")',
            "    raise TornTail",
        ),
        tests=("tests/unit/wal/test_log.py::test_a_changed_bit_anywhere_is_an_error_and_nothing_is_skipped",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "a wrong checksum at the head of a group is a torn tail",
        (
            "ext/wal/segment.py",
            '        raise damaged(files, segment, at, "the head of a group has a wrong checksum")',
            "        raise TornTail",
        ),
        tests=("tests/unit/wal/test_log.py::test_a_changed_bit_anywhere_is_an_error_and_nothing_is_skipped",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "what was synced may be zeros in the last segment",
        ("ext/wal/recovery.py", "segment.end >= durable and is_partly_written", "is_partly_written"),
        tests=("tests/unit/wal/test_log.py::test_sectors_that_are_zeros_after_they_were_synced_are_damage",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "only what comes after the first lost record may be torn",
        ("ext/wal/recovery.py", "segment.end >= durable and", "segment.end > durable and"),
        tests=("tests/unit/wal/test_log.py::test_sectors_that_are_zeros_after_they_were_synced_are_damage",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "a segment of which the last record is not published is not needed",
        (
            "ext/wal/recovery.py",
            "        if segment.end > position.published:\n            first = index",
            "        if segment.end > position.published + 1:\n            first = index",
        ),
        tests=(
            "tests/unit/wal/test_log.py::test_the_epoch_rises_with_each_opening_even_if_the_clock_does_not",
        ),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "a segment that is missing in the middle is not missed",
        (
            "ext/wal/recovery.py",
            "        if segment.base > expected:\n            found.append((expected, segment.base))\n",
            "",
        ),
        tests=("tests/unit/wal/test_log.py::test_lost_records_are_noted_when_that_is_accepted",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "what was synced last is not missed",
        (
            "ext/wal/recovery.py",
            "    if position.durable > max(end, expected):\n",
            "    if position.durable > max(end, expected) + 1:\n",
        ),
        tests=("tests/unit/wal/test_log.py::test_what_was_saved_and_is_cut_off_is_missed",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "offsets of records that were given up are used again",
        (
            "ext/wal/recovery.py",
            "        end = max(end, position.durable, position.published)\n",
            "        end = max(end, position.published)\n",
        ),
        tests=("tests/unit/wal/test_log.py::test_a_lost_tail_is_given_up_without_using_its_offsets_again",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "losses that were noted are told again",
        (
            "ext/wal/recovery.py",
            "    return [loss for loss in found if not any(first <= loss[0] and loss[1] <= last for first, last in known)]",
            "    return found",
        ),
        tests=("tests/unit/wal/test_log.py::test_lost_records_are_noted_when_that_is_accepted",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "losses are not noted",
        (
            "ext/wal/recovery.py",
            "        write_identity(files, identity)\n        end = max",
            "        end = max",
        ),
        tests=("tests/unit/wal/test_log.py::test_lost_records_are_noted_when_that_is_accepted",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "a segment ends where the next one says, whichever that follows",
        (
            "ext/wal/recovery.py",
            "        if following.previous == (segment.epoch, segment.base):\n",
            "        if True:\n",
        ),
        tests=("tests/unit/wal/test_log.py::test_lost_records_are_noted_when_that_is_accepted",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "the epoch follows the clock, even backwards",
        (
            "ext/wal/tail.py",
            "self.epoch = max(self.epoch + 1, self._now_ms())",
            "self.epoch = self._now_ms()",
        ),
        tests=(
            "tests/unit/wal/test_log.py::test_the_epoch_rises_with_each_opening_even_if_the_clock_does_not",
        ),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "the epoch does not rise where the clock stands",
        (
            "ext/wal/tail.py",
            "self.epoch = max(self.epoch + 1, self._now_ms())",
            "self.epoch = max(self.epoch, self._now_ms())",
        ),
        tests=(
            "tests/unit/wal/test_log.py::test_the_epoch_rises_with_each_opening_even_if_the_clock_does_not",
        ),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "a new segment begins with the sequence numbers of the one before",
        (
            "ext/wal/tail.py",
            "            tuple(self._sequences),\n            self._header,",
            "            last.sequences if last else tuple(self._sequences),\n            self._header,",
        ),
        tests=(
            "tests/unit/wal/test_log.py::test_the_epoch_rises_with_each_opening_even_if_the_clock_does_not",
        ),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "a segment does not say where the one before ends",
        (
            "ext/wal/tail.py",
            "            last.end if last else self.end,\n",
            "            last.base if last else self.end,\n",
        ),
        tests=(
            "tests/unit/wal/test_log.py::test_a_changed_bit_in_an_earlier_segment_is_found_when_it_is_read",
        ),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "all records of a group have one sequence number",
        (
            "ext/wal/tail.py",
            "            sequences[partition] += partitions.count(partition)",
            "            sequences[partition] += 1",
        ),
        tests=("tests/unit/wal/test_producer.py::test_threads_append_side_by_side",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "zeros ahead may exceed the limit of the log",
        (
            "ext/wal/tail.py",
            "zeros = min(_ZEROS, limits.segment_bytes - end, limits.max_bytes - self.used - len(data))",
            "zeros = min(_ZEROS, limits.segment_bytes - end)",
        ),
        tests=(
            "tests/unit/wal/test_log.py::test_zeros_ahead_stay_within_the_limits_of_a_segment_and_of_the_log",
        ),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
    mutant(
        "what was published is not saved before segments are deleted",
        ("ext/wal/log.py", "        self.save()  # first: otherwise the records would be missed\n", ""),
        tests=("tests/unit/wal/test_log.py::test_a_full_log_says_so_and_has_room_again_after_publishing",),
        unsimulated="not simulated: what flows read was sent there without a write-ahead log",
    ),
)
