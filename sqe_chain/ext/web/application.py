"""The ASGI application: the page, its data, and states over HTTP. It changes nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from sqe_chain.cli.values import key_named
from sqe_chain.errors import ChainError, ConfigurationError
from sqe_chain.errors.safe_text import json_line, shown
from sqe_chain.ext.explain.fate import find_fate
from sqe_chain.ext.explain.reading import Pass
from sqe_chain.ext.explain.report import fate_as_object, trace_as_object
from sqe_chain.ext.explain.trace import check_traceable, trace
from sqe_chain.ext.web.answers import (
    Asked,
    answer_failed,
    answer_no_route,
    answer_not_found,
    answer_refused,
    check_query,
    event_text,
    json_answer,
    number_in,
    place_in,
)
from sqe_chain.ext.web.history import History
from sqe_chain.ext.web.limits import Bounded
from sqe_chain.ext.web.openapi import OPENAPI
from sqe_chain.ext.web.records import TopicRecords
from sqe_chain.ext.web.runbook import entries
from sqe_chain.ext.web.site import PAGE, Json, NotCounted, NotFound, Site, cursor_in
from sqe_chain.plans.environment import Environment

STATIC: Final = Path(__file__).with_name("static")
LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
POLL_S: Final = 1.0
WATCHER_S: Final = 0.02
"""Watchers get news at most so often, times their number: what they cost does not grow with it."""
_QUIET_S: Final = 30.0
_TRACED: Final = 1_000
"""Newest records of a trace that the page shows."""
LONGEST_WAIT_S: Final = 60.0
_OFFSET: Final = re.compile(
    "(?P<topic>[a-zA-Z0-9._-]{1,249}):(?P<partition>[0-9]{1,9}):(?P<offset>[0-9]{1,18})"
)


@dataclass(slots=True)
class Pages:
    """Answers requests.

    Args:
        site: what can be seen of flows and states.
        records: what can be seen of topics.
        environment: makes the environment of a loaded flow, to replay it.
        history: what is known of the service that runs beside the page; None: none does.
        closing: streams are to end.
    """

    site: Site
    records: TopicRecords
    environment: Callable[[str], Environment]
    history: History | None = None
    closing: bool = False
    _tracing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _snapshot: str = ""
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _poller: asyncio.Task[None] | None = None
    _watchers: int = 0

    # ------------------------------------------------------------------ data of the page

    async def flows(self, request: Request) -> Response:
        """All flows."""
        check_query(request)
        return json_answer({"flows": await run_in_threadpool(self.site.list_flows)})

    async def flow(self, request: Request) -> Response:
        """One flow."""
        name, history = request.path_params["flow"], self.history
        described = await run_in_threadpool(self.site.describe_flow, name)
        if history is None or name not in self.site.flows:
            return json_answer({**described, "batches": []})
        return json_answer(
            {
                **described,
                "batches": history.batches(),
                "last_error": history.last_error() or described["last_error"],
            }
        )

    async def replays(self, request: Request) -> Response:
        """Which writers repeat records of a topic."""
        return json_answer(await run_in_threadpool(self.records.replays_in, request.path_params["topic"]))

    async def record(self, request: Request) -> Response:
        """One record."""
        return json_answer(await run_in_threadpool(self.records.record_at, *place_in(request)))

    async def dead_letters(self, request: Request) -> Response:
        """The newest dead-letter records of a flow."""
        check_query(request, "limit")
        flow, limit = request.path_params["flow"], number_in(request, "limit", 50, PAGE)
        return json_answer(await run_in_threadpool(self.records.dead_letters, flow, limit))

    async def runbook(self, request: Request) -> Response:
        """The entry of the runbook for an error."""
        error = request.path_params["error"]
        text = entries().get(error)
        if text is None:
            raise NotFound(f"the runbook has no entry {error!r}")
        return json_answer({"error": error, "text": text})

    # ------------------------------------------------------------------ states over HTTP

    async def keys(self, request: Request) -> Response:
        """A page of keys."""
        check_query(request, "prefix", "after", "limit")
        given = request.query_params.get("after")
        try:
            after = None if given is None else cursor_in(given)
            prefix = key_named(request.query_params.get("prefix", ""))
        except (ValueError, ConfigurationError) as error:
            raise Asked(400, f"after or prefix: {error}") from None
        limit = number_in(request, "limit", PAGE, PAGE, least=1)
        path = request.path_params
        return json_answer(
            await run_in_threadpool(self.site.list_keys, path["flow"], path["stage"], prefix, after, limit)
        )

    async def state(self, request: Request) -> Response:
        """The state of a key; with `at_least`, once an offset is counted in it."""
        check_query(request, "at_least", "timeout")
        path = request.path_params
        try:
            key = key_named(path["key"])
        except ConfigurationError as error:
            raise Asked(400, str(error)) from None
        wanted = request.query_params.getlist("at_least")
        answer = await self._state_at_least(
            path["flow"], path["stage"], key, wanted, number_in(request, "timeout", 10, 60)
        )
        tag = f'"{answer["plan_id"]}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if tag in (request.headers.get("if-none-match") or ""):
            return Response(status_code=304, headers=headers)
        return json_answer(answer, headers=headers)

    async def _state_at_least(
        self, flow: str, stage: str, key: bytes, wanted: list[str], timeout_s: int
    ) -> Json:
        offsets = list[tuple[str, int, int]]()
        for text in wanted:
            match = _OFFSET.fullmatch(text)
            if match is None:
                raise Asked(400, f"at_least={text!r}. Expected TOPIC:PARTITION:OFFSET")
            offsets.append((match["topic"], int(match["partition"]), int(match["offset"])))
        deadline = asyncio.get_running_loop().time() + min(timeout_s, LONGEST_WAIT_S)
        while True:  # until the deadline
            try:
                return await run_in_threadpool(self.site.state_of, flow, stage, key, offsets)
            except NotFound:
                if not offsets:
                    raise
                missing = "the key is not counted yet. Ask again"
            except NotCounted as error:
                missing = str(error)
            if asyncio.get_running_loop().time() >= deadline:
                raise Asked(504, missing)
            await asyncio.sleep(0.1)

    # ------------------------------------------------------------------ explanations

    async def why_not(self, request: Request) -> Response:
        """What became of a record in a flow."""
        env, place = self._environment(request), place_in(request)
        async with self._alone():
            fate = await run_in_threadpool(find_fate, env, place)
        return json_answer(fate_as_object(fate))

    async def trace(self, request: Request) -> Response:
        """The trace of a key, as a stream of events: `progress`, then `result` or `failed`."""
        env, path = self._environment(request), request.path_params
        node = next((stage for stage in env.flow.stages if stage.name == path["stage"]), None)
        if node is None:
            raise NotFound(f"flow {path['flow']!r} has no stage {path['stage']!r}")
        check_traceable(node)
        key, progress = key_named(path["key"]), SimpleQueue[tuple[int, int]]()
        stop, alone = asyncio.Event(), self._alone()  # refused before the answer begins

        async def lines() -> AsyncIterator[str]:
            if alone.locked():  # another one began since
                yield event_text("failed", {"error": "refused", "text": _BUSY})
                return
            async with alone:
                work = asyncio.ensure_future(
                    run_in_threadpool(
                        trace,
                        env,
                        node,
                        [key],
                        reading=Pass(stop.is_set, lambda read, wanted: progress.put((read, wanted))),
                    )
                )
                try:
                    while not work.done():
                        await asyncio.wait([work], timeout=0.25)
                        for read, wanted in _drained(progress):
                            yield event_text("progress", {"read": read, "of": wanted})
                    yield event_text("result", trace_as_object(work.result(), key, _TRACED))
                except ChainError as error:
                    yield event_text("failed", {"error": type(error).__name__, "text": shown(str(error))})
                finally:
                    stop.set()

        return StreamingResponse(lines(), media_type="text/event-stream", headers=_HEADERS)

    def _alone(self) -> asyncio.Lock:
        """One replay at a time: it reads whole topics."""
        if self._tracing.locked():
            raise Asked(429, _BUSY)
        return self._tracing

    def _environment(self, request: Request) -> Environment:
        name = request.path_params["flow"]
        if name not in self.site.flows:
            raise NotFound(
                f"flow {name!r} was not loaded, so it cannot be replayed: give MODULE:FLOW to sqe-chain web"
            )
        return self.environment(name)

    # ------------------------------------------------------------------ live

    async def live(self, request: Request) -> Response:
        """All flows and the newest events of the service, whenever they change."""
        del request

        async def lines() -> AsyncIterator[str]:
            seen = ""
            self._watchers += 1
            try:
                while not self.closing:  # a client that leaves ends it, too: its answer is cancelled
                    if self._poller is None or self._poller.done():
                        self._poller = asyncio.create_task(self._poll())
                    news = self._news
                    if seen != self._snapshot:
                        seen = self._snapshot
                        yield f"event: flows\ndata: {seen}\n\n"
                        continue
                    try:
                        await asyncio.wait_for(news.wait(), _QUIET_S)
                    except TimeoutError:
                        yield ": still here\n\n"
            finally:
                self._watchers -= 1

        return StreamingResponse(lines(), media_type="text/event-stream", headers=_HEADERS)

    async def _poll(self) -> None:
        """Read everything for all watchers together, as long as there are any: once a second, more rarely for many."""
        try:
            while self._watchers and not self.closing:
                text = json_line(await self._look())
                if text != self._snapshot:
                    self._snapshot = text
                    self._tell()
                await asyncio.sleep(max(POLL_S, self._watchers * WATCHER_S))
        finally:
            self._tell()

    async def _look(self) -> Json:
        events = [] if self.history is None else self.history.events()
        try:
            return {"flows": await run_in_threadpool(self.site.list_flows), "events": events}
        except Exception as error:  # noqa: BLE001 - whatever a store or broker raises, watchers see it
            return {"error": f"{type(error).__name__}: {shown(str(error))}"}

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    # ------------------------------------------------------------------ the rest

    async def openapi(self, request: Request) -> Response:
        """The description of this interface."""
        del request
        return json_answer(OPENAPI)

    async def index(self, request: Request) -> Response:
        """The page."""
        del request
        return Response((STATIC / "index.html").read_bytes(), media_type="text/html")


_BUSY: Final = "a trace or why-not is under way. Try again when it has ended"
_HEADERS: Final[Mapping[str, str]] = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def application(pages: Pages, hosts: tuple[str, ...] = LOOPBACK) -> Starlette:
    """The ASGI application. Other names of hosts are refused, so that no page of another site can read it."""
    flow, stage = "/flows/{flow:name}", "/flows/{flow:name}/stages/{stage:name}"
    routes = [
        Route("/", pages.index),
        Mount("/static", StaticFiles(directory=STATIC)),
        Route("/openapi.json", pages.openapi),
        Route("/api/live", pages.live),
        Route("/api/flows", pages.flows),
        Route("/api/topics/{topic:name}/replays", pages.replays),
        Route("/api/records/{topic:name}/{partition:whole}/{offset:whole}", pages.record),
        Route("/api/runbook/{error}", pages.runbook),
        Route(f"/api{flow}", pages.flow),
        Route(f"/api{flow}/dead-letters", pages.dead_letters),
        Route(f"/api{flow}/why-not/{{topic:name}}/{{partition:whole}}/{{offset:whole}}", pages.why_not),
        Route(f"/api{stage}/trace/{{key:path}}", pages.trace),
        Route(f"{stage}/keys", pages.keys),
        Route(f"{stage}/keys/{{key:path}}", pages.state),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts)), Middleware(Bounded)],
        exception_handlers={
            NotFound: answer_not_found,
            Asked: answer_refused,
            ChainError: answer_failed,
            HTTPException: answer_no_route,
        },
    )


def _drained(queue: SimpleQueue[tuple[int, int]]) -> list[tuple[int, int]]:
    """The newest progress, if there is any."""
    newest: list[tuple[int, int]] = []
    while True:  # until the queue is empty
        try:
            newest = [queue.get_nowait()]
        except Empty:
            return newest
