"""Replays into the inbox of one subscription over HTTP: list, start, stop."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from relay.bus.http import json_response
from relay.domain.operators import Operator
from relay.ops.api.access import Operating, Reading
from relay.ops.api.common import PROBLEMS, Asked, InContext
from relay.ops.api.contexts import Why
from relay.ops.api.models import Moment, Number, Text
from relay.ops.kinds import REPLAYS
from relay.ops.requests import ListReplays, StartReplay, StopReplay

router: Final = APIRouter(prefix="/contexts/{context}", tags=["inbox"], responses=PROBLEMS)
_LISTED: Final = 100


class ReplayAsked(BaseModel):
    """Which old messages go into which inbox.

    ``since``: the stream stored them then or later. ``until``: the stream stored them before; now, if not given.
    ``key``: only this partition key. ``event_type``: only this type. ``handled``: what becomes of those that the
    subscription has handled. ``rate``: messages a second.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    subscription: Text
    since: Moment | None = None
    until: Moment | None = None
    key: Text | None = None
    event_type: Text | None = None
    handled: Literal["skip", "again"]
    rate: Annotated[int, Field(ge=1, le=10_000)] = 100
    note: Text | None = None


class ReplayOut(BaseModel):
    """A replay into an inbox, and how far it has come.

    ``key``: only this partition key. ``event_type``: only this type. ``again``: whether handled messages are
    handled again. ``rate``: messages a second. ``source``: what it reads now. ``position``: the last batch or
    sequence that it has read. ``last_position``: the last sequence that it will read. ``added``: messages that
    are new in the inbox. ``repeated``: messages that are handled again. ``skipped``: messages that stay as they
    are. ``asked_at``: when it was asked for. ``moved_at``: when it last came on. ``ended_at``: when it ended.
    """

    id: int
    subscription: str
    state: Literal["running", "finished", "stopped"]
    since: datetime | None
    until: datetime
    key: str | None
    event_type: str | None
    again: bool
    rate: int
    source: Literal["archive", "stream"]
    position: int
    last_position: int | None
    added: int
    repeated: int
    skipped: int
    error: str | None
    asked_at: datetime
    moved_at: datetime | None
    ended_at: datetime | None
    actor: str
    note: str | None


class ReplayStateOut(BaseModel):
    """A replay after it was started or stopped."""

    id: int
    state: Literal["running", "stopped"]


@router.get(
    "/replays",
    response_model=list[ReplayOut],
    name="list_replays",
    description=REPLAYS.listing,
)
async def _list_replays(ops: Asked, _: Reading, context: InContext) -> Response:
    return json_response((await ops.queries.ask_async(ListReplays(context=context, limit=_LISTED))).unwrap())


@router.post(
    "/replays",
    response_model=ReplayStateOut,
    status_code=202,
    name="start_replay",
    description=REPLAYS.action("start").about,
)
async def _start_replay(ops: Asked, caller: Operating, context: InContext, asked: ReplayAsked) -> Response:
    values = asked.model_dump(exclude={"handled", "note"})
    by = Operator(caller.name, asked.note)
    command = StartReplay(context=context, **values, again=asked.handled == "again", by=by)
    return json_response({"id": (await ops.do(command)).unwrap(), "state": "running"}, 202)


@router.post(
    "/replays/{id}/stop",
    response_model=ReplayStateOut,
    name="stop_replay",
    description=REPLAYS.action("stop").about,
)
async def _stop_replay(ops: Asked, caller: Operating, context: InContext, id: Number, why: Why) -> Response:
    (await ops.do(StopReplay(context=context, id=id, by=Operator(caller.name, why.note)))).unwrap()
    return json_response({"id": id, "state": "stopped"})
