"""The wire format, its bounds, and the columns by which many envelopes are read at once."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "the last ordinal may equal the number of envelopes",
        (
            "envelope/head.py",
            "position[:ROOT_LENGTH] > _LAST_ROOT or ordinal >= of:",
            "position[:ROOT_LENGTH] > _LAST_ROOT or ordinal > of:",
        ),
        tests=(
            "tests/unit/envelope/test_envelope.py::test_a_position_out_of_bounds_is_refused_although_no_chain_is_walked",
        ),
        unsimulated="not simulated: no writer makes such bytes there",
    ),
    mutant(
        "the largest root is out of bounds",
        (
            "envelope/head.py",
            "position[:ROOT_LENGTH] > _LAST_ROOT or",
            "position[:ROOT_LENGTH] >= _LAST_ROOT or",
        ),
        tests=(
            "tests/unit/envelope/test_envelope.py::test_a_position_out_of_bounds_is_refused_although_no_chain_is_walked",
        ),
        unsimulated="not simulated: no writer makes such bytes there",
    ),
    mutant(
        "the sign of the root's offset is not looked at",
        (
            "envelope/head.py",
            "        if position[_OFFSET_SIGN] >= _SIGN_BIT or position",
            "        if position",
        ),
        tests=(
            "tests/unit/envelope/test_envelope.py::test_a_position_out_of_bounds_is_refused_although_no_chain_is_walked",
        ),
        unsimulated="not simulated: no writer makes such bytes there",
    ),
    mutant(
        "the position before may have another length",
        (
            "envelope/head.py",
            "    if bool(head.lane) != bool(position) or (previous and len(previous) != len(position)):",
            "    if bool(head.lane) != bool(position):",
        ),
        tests=(
            "tests/unit/envelope/test_envelope.py::test_what_contradicts_itself_is_refused_wherever_it_is_read",
        ),
        unsimulated="not simulated: no writer makes such bytes there",
    ),
    mutant(
        "a republished envelope may carry an event id",
        (
            "envelope/head.py",
            "        if not head.chain or head.event_id:\n            raise _incoherent(head)\n        of",
            "        if not head.chain:\n            raise _incoherent(head)\n        of",
        ),
        tests=(
            "tests/unit/envelope/test_envelope.py::test_what_contradicts_itself_is_refused_wherever_it_is_read",
        ),
        unsimulated="not simulated: no writer makes such bytes there",
    ),
    mutant(
        "an envelope without a position may have a chain",
        (
            "envelope/head.py",
            "        sound = len(head.event_id) == EVENT_ID_LENGTH and not head.chain\n",
            "        sound = len(head.event_id) == EVENT_ID_LENGTH\n",
        ),
        tests=(
            "tests/unit/envelope/test_envelope.py::test_wrong_fields_are_named_although_the_checksum_is_right",
        ),
        unsimulated="not simulated: no writer makes such bytes there",
    ),
    mutant(
        "an event id of any length will do",
        (
            "envelope/head.py",
            "        sound = len(head.event_id) == EVENT_ID_LENGTH and not head.chain\n",
            "        sound = bool(head.event_id) and not head.chain\n",
        ),
        tests=(
            "tests/unit/envelope/test_envelope.py::test_wrong_fields_are_named_although_the_checksum_is_right",
        ),
        unsimulated="not simulated: no writer makes such bytes there",
    ),
    mutant(
        "a field that is there twice goes unnoticed",
        (
            "envelope/head.py",
            "    if head.crc32 or head.ByteSize() != len(body):  # it holds something that the parser has left out\n        check_once(value)\n",
            "",
        ),
        tests=(
            "tests/unit/envelope/test_envelope.py::test_what_contradicts_itself_is_refused_wherever_it_is_read",
        ),
        unsimulated="not simulated: no writer makes such bytes there",
    ),
    mutant(
        "an ordinal of a link may equal its number of siblings",
        ("chain.py", '("ordinal", link.ordinal, link.of - 1)', '("ordinal", link.ordinal, link.of)'),
        tests=("tests/unit/test_chain.py::test_beyond_a_bound_the_error_names_the_field",),
        unsimulated="not simulated: no writer makes such bytes there",
    ),
    mutant(
        "a name with a line break at its end is a topic",
        ("chain.py", "    if not _TOPIC.fullmatch(link.topic) or", "    if not _TOPIC.match(link.topic) or"),
        tests=("tests/unit/test_chain.py::test_beyond_a_bound_the_error_names_the_field",),
        unsimulated="not simulated: no writer makes such bytes there",
    ),
    mutant(
        "output names are measured in characters",
        (
            "chain.py",
            "    if not 1 <= len(link.output.encode()) <= MAX_OUTPUT:",
            "    if not 1 <= len(link.output) <= MAX_OUTPUT:",
        ),
        tests=("tests/unit/test_chain.py::test_beyond_a_bound_the_error_names_the_field",),
        unsimulated="not simulated: no writer makes such bytes there",
    ),
    mutant(
        "columns take a republished envelope with an event id for ordinary",
        (
            "envelope/columns.py",
            "        agree &= id_size == np.where(republished, 0, EVENT_ID_LENGTH)\n",
            "        agree &= republished | (id_size == EVENT_ID_LENGTH)\n",
        ),
        tests=("tests/unit/segment/test_one_rule.py::test_all_ways_agree",),
        unsimulated="not simulated: no writer makes such bytes there",
    ),
    mutant(
        "columns take an ordinal that equals `of` for ordinary",
        ("envelope/columns.py", "(ordinal < of)", "(ordinal <= of)"),
        tests=("tests/unit/segment/test_one_rule.py::test_all_ways_agree",),
        unsimulated="not simulated: no writer makes such bytes there",
    ),
    mutant(
        "columns take a chain without a position for ordinary",
        ("envelope/columns.py", "        agree &= (chain_size > 0) == republished\n", ""),
        tests=("tests/unit/segment/test_one_rule.py::test_all_ways_agree",),
        unsimulated="not simulated: no writer makes such bytes there",
    ),
    mutant(
        "columns take a lane without a position for ordinary",
        (
            "envelope/columns.py",
            "        agree: Flags = (self.lane != 0) == republished\n",
            "        agree: Flags = (self.lane != 0) >= republished\n",
        ),
        tests=(
            "tests/unit/segment/test_one_rule.py::test_what_is_ordinary_is_sound_and_has_what_protobuf_finds",
        ),
        unsimulated="not simulated: no writer makes such bytes there",
    ),
    mutant(
        "a position of 32 links is too long",
        ("envelope/head.py", "for links in range(1, MAX_LINKS + 1)", "for links in range(1, MAX_LINKS)"),
        tests=("tests/unit/envelope/test_envelope.py::test_a_loop_of_services_ends_at_32_links",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a watermark may lie beyond all times",
        ("envelope/head.py", "    if head.watermark_ms:\n        check_timestamp(head.watermark_ms)\n", ""),
        tests=("tests/unit/envelope/test_envelope.py::test_a_watermark_that_no_event_can_reach_is_refused",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "an unknown event time is out of bounds",
        (
            "envelope/head.py",
            "    if not -1 <= timestamp_ms <= MAX_TIMESTAMP_MS:",
            "    if not 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:",
        ),
        tests=("tests/unit/envelope/test_envelope.py::test_times_within_the_bounds_are_read",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "the last event time is out of bounds",
        (
            "envelope/head.py",
            "    if not -1 <= timestamp_ms <= MAX_TIMESTAMP_MS:",
            "    if not -1 <= timestamp_ms < MAX_TIMESTAMP_MS:",
        ),
        tests=("tests/unit/envelope/test_envelope.py::test_times_within_the_bounds_are_read",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a chain of 33 links is accepted",
        (
            "chain.py",
            "        if len(self.links) > MAX_LINKS:",
            "        if len(self.links) > MAX_LINKS + 1:",
        ),
        tests=("tests/unit/test_chain.py::test_a_chain_of_33_links_is_refused_and_one_of_32_is_not",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "topics may be called '..'",
        ("chain.py", '_NO_TOPICS = frozenset((".", ".."))', '_NO_TOPICS = frozenset((".",))'),
        tests=(
            "tests/unit/envelope/test_envelope.py::test_a_chain_out_of_bounds_or_against_lane_and_position_is_found_by_the_strict_check",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "the largest leader epoch is out of bounds",
        ("chain.py", "MAX_EPOCH = 2**31\n", "MAX_EPOCH = 2**31 - 1\n"),
        tests=("tests/unit/envelope/test_vectors.py::test_bytes_are_read_as_described",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "bytes after the checksum are a wrong checksum",
        (
            "envelope/wire.py",
            "    if end < len(value):\n        return TrailingBytes",
            "    if end + 1 < len(value):\n        return TrailingBytes",
        ),
        tests=("tests/unit/envelope/test_envelope.py::test_trailing_bytes_are_named",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a run takes positions of several lengths for those of one",
        (
            "envelope/run_template.py",
            "(block.chain_sizes[indexes] << 16) + (block.position_sizes[indexes] << 8)",
            "(block.chain_sizes[indexes] << 16)",
        ),
        tests=(
            "tests/unit/segment/test_run_outputs.py::test_chains_of_one_size_and_positions_of_several_stand_in_one_run",
        ),
        unsimulated="not found by 1,500 schedules",
    ),
    mutant(
        "an empty key of an envelope counts as none",
        (
            "task/deciding.py",
            'head.key if head.HasField("key") else message.key()',
            "head.key or message.key()",
        ),
        tests=("tests/protocol/test_poison.py::test_an_empty_key_in_an_envelope_is_the_key",),
        unsimulated="not found by 1,500 schedules",
    ),
    mutant(
        "with its chain in headers an empty value counts as none",
        (
            "envelope/carrier.py",
            "    if value is not None and head.deleted:\n",
            "    if value and head.deleted:\n",
        ),
        tests=("tests/unit/envelope/test_carrier.py::test_a_deleted_one_has_no_value",),
        unsimulated="not simulated: no writer makes such bytes there",
    ),
)
