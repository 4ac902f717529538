"""Events of the outbox over HTTP: list, show, retry, replay."""

from __future__ import annotations

from typing import Annotated, Any, Final, get_args

from fastapi import APIRouter, Query
from starlette.responses import Response

from relay.domain.errors import InvalidRequest
from relay.ops.api.access import Caller, Operating, Reading
from relay.ops.api.answering import PROBLEMS, Asked, InContext, Ops, acted, detailed, page_of, paged
from relay.ops.api.models import (
    EventsAsked,
    EventsFilter,
    EventStatus,
    OutcomeOut,
    PageOut,
    Selection,
    Text,
    as_id,
)
from relay.ops.rows import Act, FindEvents, GetEvent, ReplayEvents, RetryEvents

router: Final = APIRouter(prefix="/contexts/{context}/events", tags=["events"], responses=PROBLEMS)
Chosen = Selection[Text, EventsFilter]


@router.get("", response_model=PageOut)
async def list_events(
    ops: Asked, _: Reading, context: InContext, asked: Annotated[EventsAsked, Query()]
) -> Response:
    """List events without their payloads, the newest first."""
    wanted = asked.wanted(list(asked.status or get_args(EventStatus)))
    return await paged(ops, page_of(FindEvents, context, wanted, asked))


@router.get("/{id}", response_model=dict[str, Any])
async def show_event(ops: Asked, caller: Reading, context: InContext, id: Text, payload: bool = False) -> Response:
    """Show an event, and who did what to it. Its payload needs the right to see payloads."""
    return await detailed(ops, caller, GetEvent(context=context, id=as_id(id, "id")), payload=payload)


@router.post("/retry", response_model=OutcomeOut)
async def retry_events(ops: Asked, caller: Operating, context: InContext, chosen: Chosen) -> Response:
    """Retry dead and failing events: attempts and back-off start anew."""
    return await _act(ops, caller, context, "retry", RetryEvents, chosen, ["dead", "failing"])


@router.post("/replay", response_model=OutcomeOut)
async def replay_events(ops: Asked, caller: Operating, context: InContext, chosen: Chosen) -> Response:
    """Publish published events once more, to every consumer. Consumers deduplicate events by id."""
    if chosen.all or (chosen.filter and chosen.filter.error is not None):
        raise InvalidRequest("say which published events: ids or a filter without an error")
    return await _act(ops, caller, context, "replay", ReplayEvents, chosen, ["published"])


async def _act(
    ops: Ops, caller: Caller, context: str, action: str, do: type[Act], chosen: Chosen, statuses: list[str]
) -> Response:
    ids = None if chosen.ids is None else [as_id(id, "ids") for id in chosen.ids]
    wanted = None if ids else (chosen.filter or EventsFilter()).wanted(statuses)
    what = {"selection": chosen, "context": context, "ids": ids, "wanted": wanted}
    return await acted(ops, caller, action, FindEvents, do, what)
