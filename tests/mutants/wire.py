"""The wire format, its bounds, and the columns by which many envelopes are read at once."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

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
            "    if head.ByteSize() != len(value):  # it holds something that the parser has left out\n        check_once(value)\n",
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
)
