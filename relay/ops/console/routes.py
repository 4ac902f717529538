"""Pages of the whole system: the overview, what is wrong, and the life of a message. `attach` adds all pages."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import RedirectResponse, Response

from relay.bus import Nothing
from relay.domain.alarms import Alarm, AlarmsNow
from relay.domain.errors import InvalidKey, InvalidRequest
from relay.domain.findings import Diagnosis
from relay.domain.identity import check_id
from relay.domain.life import UnknownId
from relay.domain.search import parse
from relay.ops.alarms.watch import ReadAlarms
from relay.ops.api.access import Reading
from relay.ops.api.common import Asked, Ops
from relay.ops.console import (
    archive,
    context_pages,
    controls,
    deeds,
    everywhere,
    history,
    lists,
    persons,
    replays,
    row_actions,
    system,
    work,
)
from relay.ops.console.dense import CARDS, View, dense_rows
from relay.ops.console.life_picture import draw, entries, timed
from relay.ops.console.overview import PATIENCE_S, Flow, Patient
from relay.ops.console.render import Static, link, page
from relay.ops.find import Find
from relay.ops.queries import Diagnose, Explain

router: Final = APIRouter()
#: A diagnosis is made again after so many seconds.
_FRESH_S: Final = 10.0
#: How many findings the overview shows.
_MOST: Final = 3
#: The page on which a finding can be seen or mended, by the first word of its code.
_PLACES: Final = {
    "STREAM": "/streams",
    "CONSUMER": "/streams",
    "TOPOLOGY": "/streams",
    "FILTER": "/streams",
    "WINDOW": "/streams",
    "ACK": "/streams",
    "NO": "/fleet",
    "QUEUE": "/queues",
    "JOB": "schedule",
    "CONTROL": "controls",
    "OUTBOX": "events",
    "HANDLER": "dead-letters",
}


@router.get("/")
async def overview(request: Request, ops: Asked, _: Reading, view: View | None = None) -> Response:
    """Show what waits where in each context. ``view``: a row for each, or a card; by how many there are."""
    flow: Flow = request.app.state.flow
    view = view or ("cards" if len(ops.settings.contexts) <= CARDS else "dense")
    found, alarms = await asyncio.gather(flow.look(ops), _alarms(request, ops))
    if view == "cards":
        return page(request, "overview.html", found=found, view=view, **alarms)
    rows = dense_rows(found, alarms["alarms"])
    return page(request, "dense.html", found=found, rows=rows, view=view, **alarms)


async def _look(ops: Ops) -> AlarmsNow:
    return (await ops.queries.ask_async(ReadAlarms())).unwrap()


async def _alarms(request: Request, ops: Ops) -> dict[str, Any]:
    """The alarms that a page shows: ``marked``, of each context, the worst of each station of the overview."""
    watched: Patient[AlarmsNow] = request.app.state.alarms
    known = await watched.ask(partial(_look, ops))
    alarms = None if known is None else known.answer
    marked: dict[str, dict[str, Alarm]] = {}
    for it in alarms.firing if alarms else ():
        if it.rule.station and it.context:
            marked.setdefault(it.context, {}).setdefault(it.rule.station, it)
    address = next((it.alerts.runbook for it in ops.settings.contexts.values()), "")
    return {"alarms": alarms, "marked": marked, "runbook_at": address if address.startswith("http") else ""}


@router.get("/doctor")
async def doctor(request: Request, ops: Asked, _: Reading, part: bool = False) -> Response:
    """Say what is wrong now, in words. ``part``: return only the list, for another page."""
    known: _Known = request.app.state.known
    found, when = await known.ask(ops)
    template = "doctor-part.html" if part else "doctor.html"
    return page(
        request,
        template,
        found=found,
        when=when,
        most=_MOST,
        place=lambda it: _place(ops, it.code, it.subject),
        **({} if part else await _alarms(request, ops)),
    )


def _place(ops: Ops, code: str, subject: str) -> str | None:
    path = _PLACES.get(code.partition("_")[0])
    if path is None or path.startswith("/"):
        return path
    named = {*subject.replace(".", " ").split()} & {*ops.settings.contexts}
    context = next(iter(named), next(iter(ops.settings.contexts), None))
    return f"/contexts/{context}/{path}" if context else None


class _Known:
    """The last diagnosis, and when it was made."""

    def __init__(self) -> None:
        self._at = float("-inf")
        self._found: tuple[Diagnosis, datetime] | None = None

    async def ask(self, ops: Ops) -> tuple[Diagnosis, datetime]:
        """Return a diagnosis that is at most ten seconds old, and when it was made."""
        if self._found is None or time.monotonic() - self._at > _FRESH_S:
            self._found = await ops.recent.ask(ops, Diagnose(close=True)), datetime.now(UTC)
            self._at = time.monotonic()
        return self._found


@router.get("/explain")
async def explain(
    request: Request, ops: Asked, _: Reading, id: str = "", archive: bool = False, part: bool = False
) -> Response:
    """Show the life of a message. Any id of the message or of its chain finds it."""
    if not (id := id.strip()):
        return RedirectResponse("/", 303)
    text = str(check_id(id, "id").value)
    found = await ops.queries.ask_async(Explain(id=text, archive=archive))
    if isinstance(found, Nothing):
        if part:
            return page(request, "life-part.html", life=None, asked=text)
        looked = "nor does its archive" if archive else "its archive was not looked at"
        hint = "Search with any id of an event, message, task, dead letter or operation, or STREAM:SEQUENCE."
        raise UnknownId(f"no context knows {text!r}; {looked}", hint=hint)
    listed = entries(found.value.steps)
    axis, bars = timed(listed)
    template = "life-part.html" if part else "life.html"
    return page(
        request,
        template,
        asked=text,
        life=found.value,
        listed=listed,
        drawing=draw(listed),
        axis=axis,
        timed=bars,
        archive=archive,
    )


@router.get("/find")
async def find(request: Request, ops: Asked, _: Reading, q: str = "") -> Response:
    """Show what one line finds in all contexts. An id that somebody knows leads to its life."""
    if not (line := q.strip()):
        return RedirectResponse("/", 303)
    terms = parse(line)
    if len(terms) == 1 and not terms[0].name:
        with suppress(InvalidKey, InvalidRequest):
            text = str(check_id(terms[0].value, "q").value)
            if not isinstance(await ops.queries.ask_async(Explain(id=text, archive=False)), Nothing):
                return RedirectResponse(link("/explain", id=text), 303)
    found = (await ops.queries.ask_async(Find(text=line))).unwrap()
    return page(request, "find.html", line=line, found=found)


def attach(app: FastAPI) -> None:
    """Serve the console at the root of an application. Data that lasts between requests is in its state."""
    app.state.flow, app.state.known = Flow(), _Known()
    app.state.alarms = Patient(PATIENCE_S)
    app.mount("/static", Static())
    pages = (
        everywhere,
        lists,
        context_pages,
        history,
        deeds,
        replays,
        controls,
        work,
        archive,
        system,
        persons,
        row_actions,
    )
    for it in (router, *(one.router for one in pages)):
        app.include_router(it, include_in_schema=False)
