"""Values between functions, and states: what a function gets is what a codec reads, and nobody else has it."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.edits import body, replace
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
)
