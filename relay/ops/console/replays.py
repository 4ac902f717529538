"""The page of replays into the inboxes of a context: list, start, stop."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from relay.domain.operators import Operator
from relay.ops.api.access import Operating, Reading
from relay.ops.api.common import Asked, InContext
from relay.ops.api.models import Number
from relay.ops.api.replays import ReplayAsked
from relay.ops.console.confirmation import Confirmation, note_of
from relay.ops.console.forms import Form, Pairs, read
from relay.ops.console.render import page
from relay.ops.kinds import REPLAYS
from relay.ops.requests import LISTED, ListReplays, StartReplay, StopReplay

router: Final = APIRouter(prefix="/contexts/{context}/replays")
_START: Final = REPLAYS.action("start")
_STOP: Final = REPLAYS.action("stop")


@router.get("")
async def replays(request: Request, ops: Asked, _: Reading, context: InContext) -> Response:
    """List replays and how far each has come, with a form for another."""
    found = (await ops.queries.ask_async(ListReplays(context=context))).unwrap()
    known = [*ops.settings.contexts[context].subscriptions]
    return page(
        request, "replays.html", kind=REPLAYS, context=context, rows=found, most=LISTED, subscriptions=known
    )


def _start(context: str, pairs: Pairs) -> tuple[Confirmation, ReplayAsked]:
    asked, base = read(ReplayAsked, pairs), f"/contexts/{context}/replays"
    again = "Messages that it has handled are handled again." if asked.handled == "again" else ""
    fields = [(name, str(value)) for name, value in asked.model_dump(exclude_none=True, exclude={"note"}).items()]
    confirmation = Confirmation(
        button=_START.label,
        question=f"{_START.label} into the inbox of {asked.subscription}?",
        about=f"{_START.about} {again}".strip(),
        done=_START.done,
        to=f"{base}/start",
        back=base,
        fields=fields,
        context=context,
    )
    return confirmation, asked


@router.get("/start")
async def ask_start(request: Request, _: Operating, context: InContext) -> Response:
    """Ask before a replay begins."""
    return _start(context, request.query_params.multi_items())[0].ask(request)


@router.post("/start")
async def start(request: Request, ops: Asked, caller: Operating, context: InContext, form: Form) -> Response:
    """Begin a replay."""
    confirmation, asked = _start(context, [it for it in form if it[0] != "note"])
    values = asked.model_dump(exclude={"handled", "note"})
    by = Operator(caller.name, note_of(form))
    command = StartReplay(context=context, **values, again=asked.handled == "again", by=by)
    (await ops.do(command)).unwrap()
    return confirmation.result_page(request)


class _Which(BaseModel):
    id: Number


def _stop(context: str, pairs: Pairs) -> tuple[Confirmation, int]:
    id, base = read(_Which, [it for it in pairs if it[0] != "note"]).id, f"/contexts/{context}/replays"
    confirmation = Confirmation(
        button=_STOP.label,
        question=f"{_STOP.label} replay {id}?",
        about=_STOP.about,
        done=_STOP.done,
        to=f"{base}/stop",
        back=base,
        fields=[("id", str(id))],
        context=context,
    )
    return confirmation, id


@router.get("/stop")
async def ask_stop(request: Request, _: Operating, context: InContext) -> Response:
    """Ask before a replay is stopped."""
    return _stop(context, request.query_params.multi_items())[0].ask(request)


@router.post("/stop")
async def stop(request: Request, ops: Asked, caller: Operating, context: InContext, form: Form) -> Response:
    """Stop a replay."""
    confirmation, id = _stop(context, form)
    (await ops.do(StopReplay(context=context, id=id, by=Operator(caller.name, note_of(form))))).unwrap()
    return confirmation.result_page(request)
