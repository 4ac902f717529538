"""From a request to the bus and back: what all routes have in common."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import IO, Annotated, Any, Final, TypeVar
from urllib.parse import quote
from uuid import UUID

from fastapi import Depends, Path, Request
from starlette.responses import Response

from relay.adapters.postgres.paging import WINDOW, Page, Row
from relay.bus import Command, CommandBus, Failed, Nothing, Query, QueryBus, Result
from relay.bus.errors import NothingFound
from relay.bus.http import as_response, error_body, json_response, status_of
from relay.domain.operators import Outcome
from relay.ops.api.access import NotAdmitted
from relay.ops.api.answers import Download, in_json
from relay.ops.api.lines import READ, in_lines
from relay.ops.api.models import ProblemOut
from relay.ops.kinds import Kind, Order
from relay.ops.requests import FindRows, ReadPayload
from relay.settings import Settings

_MEANINGS: Final = {
    400: "the body is no JSON that can be read",
    401: "a token is needed",
    403: "not allowed",
    404: "there is no such thing, or no such context",
    408: "the body did not come in time",
    409: "its state forbids this, or a filter finds too many",
    413: "the body is too large",
    415: "the body is not JSON",
    422: "the request is not valid",
    500: "a fault of the program",
    503: "a server does not answer, or too much is asked at once",
}
#: Answers that any route may give besides its own, for the OpenAPI document.
PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": ProblemOut, "description": meaning} for status, meaning in _MEANINGS.items()
}


_MAX_KNOWN: Final = 200
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsLimits:
    """How much one answer may cost.

    ``rows``: how many a form may change. ``files``: how many of an archive it may read. ``shown``: how many ids
    its result names. ``window``: how many rows a short look reads in each order. ``downloads``: how many at once.
    """

    rows: int = 10_000
    files: int = 1_000
    shown: int = 100
    window: int = WINDOW
    downloads: int = 8


class Recent:
    """Answers of the last second. So the servers answer each question at most once a second.

    ``fresh_s``: for how long an answer is given again, in seconds, to any number of callers.
    """

    def __init__(self, fresh_s: float = 1.0) -> None:
        self.fresh_s = fresh_s
        self.forget()

    async def ask(self, ops: Ops, query: Query[Answer]) -> Answer:
        """Return an answer that is at most a second old. Callers of the same question meanwhile wait for it."""
        name = f"{type(query).__name__} {query!r}"
        if name not in self._locks and len(self._locks) >= _MAX_KNOWN:
            self.forget()
        # Exactly these objects: an answer from before `forget` must not be kept after it.
        answers = self._known
        async with self._locks[name]:
            at, known = answers.get(name, (-math.inf, None))
            if time.monotonic() - at > self.fresh_s:
                known = (await ops.queries.ask_async(query)).unwrap()
                now = time.monotonic()
                # Pages may be large, and nobody gets an old one.
                for old in [it for it, (at, _) in answers.items() if now - at > self.fresh_s]:
                    del answers[old]
                answers[name] = (now, known)
            answer: Answer = known
            return answer

    def forget(self) -> None:
        """Drop all answers, because something has changed."""
        self._known: dict[str, tuple[float, Any]] = {}
        # A question that fails has a lock, but no answer.
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)


@dataclass(frozen=True)
class Ops:
    """What the routes ask: the system that ``settings`` describes."""

    settings: Settings
    queries: QueryBus
    commands: CommandBus
    recent: Recent
    limits: OpsLimits

    @cached_property
    def downloads(self) -> asyncio.Semaphore:
        """The places for downloads."""
        return asyncio.Semaphore(self.limits.downloads)

    async def do(self, command: Command[Answer]) -> Result[Answer]:
        """Carry out a command. Later questions are answered anew, also if it failed half-way."""
        try:
            return await self.commands.dispatch_async(command)
        finally:
            self.recent.forget()


def _ops(request: Request) -> Ops:
    ops: Ops = request.app.state.ops
    return ops


Asked = Annotated[Ops, Depends(_ops)]
InContext = Annotated[str, Path(description="A context of relay.toml.", max_length=100)]


async def answered(ops: Ops, query: Query[Any]) -> Response:
    """The answer of the query bus as it is."""
    return in_json((await ops.queries.ask_async(query)).unwrap())


async def payload_of(ops: Ops, kind: Kind, context: str, id: Any) -> Response:
    """The whole payload of a row, as a download. Raises NotAdmitted if there are too many: each is a file."""
    if ops.downloads.locked():
        raise NotAdmitted(503, "BUSY", "too many payloads are being downloaded", "ask again in a second")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(ops.downloads)
        found = await ops.queries.ask_async(ReadPayload(kind=kind.path, context=context, id=id))
        if isinstance(found, Nothing):
            raise NothingFound(f"{context} has no {kind.one} {str(id)[:100]!r}", hint="it may be in the archive")
        file: IO[bytes] = found.unwrap()
        stack.pop_all()
    return Download(file, ops.downloads.release)


def page_of(kind: Kind, context: str, wanted: Any, asked: Any) -> FindRows:
    """The query for a page. ``asked``: which page, and how it is looked for."""
    which = {name: getattr(asked, name) for name in ("limit", "before", "thorough")}
    oldest = asked.order is Order.OLDEST
    return FindRows(kind=kind.path, context=context, wanted=wanted, oldest=oldest, **which)


async def paged(ops: Ops, kind: Kind, query: FindRows) -> Response:
    """A page of rows."""
    page: Page[Row] = await ops.recent.ask(ops, query)
    more = len(page.items) == query.limit and page.total > query.limit
    reach = {order: asdict(it) for order, it in page.reach.items()}
    following = page.items[-1][kind.order] if more else None
    shown = {"items": page.items, "total": page.total, "exact": page.exact, "reach": reach, "next": following}
    if page.unconfirmed:
        shown["unconfirmed"] = page.unconfirmed
    return in_json(shown)


async def lines_of(ops: Ops, kind: Kind, query: FindRows, one: bool) -> Response:
    """All rows from a page on, as lines; ``one``: only those of this page. The head says how many there are."""
    query = query if one else query.model_copy(update={"limit": READ})
    head: Page[Row] = await ops.recent.ask(ops, query.model_copy(update={"limit": 1}))

    async def page(before: Any) -> tuple[Sequence[Any], Any]:
        asked = query if before is None else query.model_copy(update={"before": before})
        found: Page[Row] = (await ops.queries.ask_async(asked)).unwrap()
        more = len(found.items) == query.limit and not one
        return found.items, found.items[-1][kind.order] if more else None

    return await in_lines(
        ops.downloads, page, headers={"Relay-Total": str(head.total), "Relay-Exact": str(head.exact).lower()}
    )


async def row_of(ops: Ops, query: Query[Row]) -> Row | Response:
    """One row; or the response that says that there is none."""
    found = await ops.queries.ask_async(query)
    return as_response(found) if isinstance(found, Nothing) else dict(found.value)


def counted(action: str, count: int, selection: UUID | None = None) -> Response:
    """What an action would change. ``selection``: to be given back with the act."""
    body = {"action": action, "dry_run": True, "count": count, "done": [], "refused": []}
    return json_response(body | {"deed": None, "left": 0, "gone": 0, "selection": selection})


def outcome_of(action: str, result: Result[Outcome], context: str | None = None) -> Response:
    """The result for each id, and where the act is told. If nothing could be done, this is the first error."""
    if isinstance(result, Failed):
        return as_response(result)
    outcome = result.value
    refused = [{"id": id, **error_body(error)} for id, error in outcome.refused]
    body = {
        "action": action,
        "dry_run": False,
        "count": len(outcome.done),
        "done": outcome.done,
        "refused": refused,
        "deed": outcome.deed,
        "left": outcome.left,
        "gone": outcome.gone,
        "selection": None,
    }
    if outcome.refused and not outcome.done:
        error = outcome.refused[0][1]
        return json_response(body | error_body(error), status_of(error))
    response = json_response(body)
    if context and outcome.deed:
        response.headers["Location"] = f"/api/v1/contexts/{quote(context)}/audit/{outcome.deed}"
    return response
