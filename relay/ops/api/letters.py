"""Dead letters over HTTP: list, group by reason, show, requeue, discard, resolve."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from relay.bus.http import json_response
from relay.domain.incidents import IncidentStatus, show_original
from relay.ops.api.access import Caller, Operating, Reading, check_payloads
from relay.ops.api.answering import PROBLEMS, Asked, InContext, Ops, acted, page_of, paged, row_of
from relay.ops.api.models import LettersAsked, LettersFilter, Number, OutcomeOut, PageOut, Selection
from relay.ops.rows import (
    Act,
    DiscardIncidents,
    FindIncidents,
    GetIncident,
    GroupIncidents,
    RequeueIncidents,
    ResolveIncidents,
)

router: Final = APIRouter(prefix="/contexts/{context}/dead-letters", tags=["dead letters"], responses=PROBLEMS)
Chosen = Selection[Number, LettersFilter]
_OPEN: Final = [IncidentStatus.OPEN]


@router.get("", response_model=PageOut)
async def list_dead_letters(
    ops: Asked, _: Reading, context: InContext, asked: Annotated[LettersAsked, Query()]
) -> Response:
    """List dead letters without their messages, the newest first."""
    wanted = asked.wanted(asked.status or _OPEN)
    return await paged(ops, page_of(FindIncidents, context, wanted, asked))


@router.get("/groups", response_model=list[dict[str, Any]])
async def group_dead_letters(
    ops: Asked, _: Reading, context: InContext, asked: Annotated[LettersAsked, Query()]
) -> Response:
    """Count dead letters by the code of their reason and by their class, among the newest 10,000."""
    wanted = asked.wanted(asked.status or _OPEN)
    return json_response(await ops.recent.ask(ops, GroupIncidents(context=context, wanted=wanted)))


@router.get("/{id}", response_model=dict[str, Any])
async def show_dead_letter(
    ops: Asked, caller: Reading, context: InContext, id: Number, payload: bool = False
) -> Response:
    """Show a dead letter, and who did what to it. Its message needs the right to see payloads."""
    if payload:
        check_payloads(caller)
    found = await row_of(ops, GetIncident(context=context, id=id))
    if isinstance(found, Response):
        return found
    original = show_original(found.pop("original"))
    return json_response({**found, **(original if payload else {})})


@router.post("/requeue", response_model=OutcomeOut)
async def requeue_dead_letters(ops: Asked, caller: Operating, context: InContext, chosen: Chosen) -> Response:
    """Put messages back into the failing consumer's inbox, with new attempts. Others do not see them again."""
    return await _act(ops, caller, context, "requeue", RequeueIncidents, chosen)


@router.post("/discard", response_model=OutcomeOut)
async def discard_dead_letters(ops: Asked, caller: Operating, context: InContext, chosen: Chosen) -> Response:
    """Give messages up, with a note. They stay recorded, and requeue still takes them by id."""
    return await _act(ops, caller, context, "discard", DiscardIncidents, chosen)


@router.post("/resolve", response_model=OutcomeOut)
async def resolve_dead_letters(ops: Asked, caller: Operating, context: InContext, chosen: Chosen) -> Response:
    """Close dead letters that were dealt with by other means, with a note."""
    return await _act(ops, caller, context, "resolve", ResolveIncidents, chosen)


async def _act(ops: Ops, caller: Caller, context: str, action: str, do: type[Act], chosen: Chosen) -> Response:
    wanted = None if chosen.ids else (chosen.filter or LettersFilter()).wanted(_OPEN)
    what = {"selection": chosen, "context": context, "ids": chosen.ids, "wanted": wanted}
    return await acted(ops, caller, action, FindIncidents, do, what)
