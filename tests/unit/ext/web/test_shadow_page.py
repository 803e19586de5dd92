"""Goal: the page of a flow shows its shadow: how far it is behind, and what it has compared of outputs. Method: a real server, a flow in memory."""

from __future__ import annotations

from typing import Any

from tests.support.shadows import flow_of, follow, loud_of, running
from tests.unit.ext.web.test_flow_page import page_of


def test_an_open_shadow_is_shown_until_it_has_taken_the_place_of_the_flow() -> None:
    pipeline, flow = running(), flow_of(fold=loud_of(0))
    with page_of(pipeline.found) as page:

        def shown() -> Any:
            return page.get("/api/flows/notes")["shadow"]

        assert shown() is None
        follow(pipeline, flow)
        assert (shown()["name"], shown()["records_behind"], shown()["different"]) == ("notes.shadow-1", 0, 0)
        pipeline.feed(["zoo", "yak"])
        assert (shown()["records_behind"], shown()["plans_left"]) == (2, 1)
        follow(pipeline, flow)
        beside = shown()
        # Totals of the second stage are of the same words in capitals, too.
        assert beside["different"] == pipeline.found.compared_outputs(flow).counts.different > 0
        assert (beside["records_behind"], beside["plans_left"], beside["gaps"]) == (0, 0, 0)
        assert beside["examples"]
        assert isinstance(beside["modules"], list)
        pipeline.found.end_shadow(flow)
        assert shown() is None
