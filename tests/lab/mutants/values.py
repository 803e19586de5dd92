"""Values between functions, and states: what a function gets is what a codec reads, and nobody else has it."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.edits import body, drop, replace
from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "a stage without a shuffle takes the very object that a function has returned",
        ("OperatorWriter._read_back", replace("f'd{node.index}(e{node.index}({value}))'", "value")),
        killed_by=(
            "test_own_values::test_a_fold_gets_what_the_codec_reads",
            "test_values::test_a_proof_compares_layouts_and_blocks",
        ),
        schedules=100,
    ),
    mutant(
        "functions behind one value share it",
        ("OperatorWriter._own", body("return at.value")),
        killed_by="test_own_values::test_branches_do_not_see_what_others_do_to_a_value",
    ),
    mutant(
        "a state is stored though its codec reads it back as another one",
        ("json_codec:Json.encode_state", body("return self.encode(state)")),
        killed_by="test_own_values::test_a_state_that_a_store_would_give_back_otherwise_is_poison",
    ),
    mutant(
        "calls of `combine` share the value of the table",
        (
            "OwnValues._decoded",
            replace("decode(stored.data)", "self._decoders.setdefault(stored, decode(stored.data))"),
        ),
        killed_by="test_own_values::test_each_call_of_combine_has_values_of_its_own",
    ),
    mutant(
        "JSON may be nested to any depth",
        ("check_depth", body("return")),
        killed_by="test_own_values::test_how_deep_a_value_may_be_nested_does_not_depend_on_the_stack",
    ),
    mutant(
        "a class that no other process finds may go into a stage without a shuffle",
        ("compiler:_found_by", body("return codec_for(type(value))")),
        killed_by="test_own_values::test_a_class_that_no_other_process_finds_is_refused_on_every_layout",
    ),
    mutant(
        "of a block all outputs repeat the headers of its first input",
        ("outputs:_headers", replace("headers[number]", "headers[numbers[0]]")),
        killed_by="test_carried::test_each_output_repeats_the_headers_of_its_own_input",
    ),
    mutant(
        "a parked record loses the headers that it came with",
        ("ParkedRecord.of", replace("tuple(message.headers() or ())", "()")),
        killed_by="test_carried::test_a_parked_record_keeps_its_headers_until_it_is_released",
    ),
    mutant(
        "a protobuf field may get another default",
        ("protobuf_shape:_default", body("return None")),
        killed_by="test_protobuf_shape::test_another_default_is_reported",
    ),
    mutant(
        "an enum may lose a value",
        ("protobuf_shape:_lost_values", body("yield from ()")),
        killed_by="test_protobuf_shape::test_an_enum_may_get_values_and_lose_none",
    ),
    mutant(
        "a flow without stages reads what is still to be read as any type",
        ("committed:_is_retyped", drop("check_read_type(flow, tp[0], was)")),
        killed_by="test_changed_code::test_a_flow_without_stages_refuses_a_type_that_reads_something_else_in_the_rest",
    ),
    mutant(
        "of a record that was skipped twice the first reason is taken",
        ("parse_dead_letter", replace("headers[:starts[-1]]", "headers[:starts[0]]")),
        killed_by="test_carried::test_a_record_that_is_skipped_again_keeps_the_headers_that_it_came_with",
    ),
)
