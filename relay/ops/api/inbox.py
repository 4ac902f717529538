"""Messages of the inbox over HTTP: list, group the failing ones, show, try now."""

from __future__ import annotations

from typing import Annotated, Any, Final, get_args

from fastapi import APIRouter, Query
from starlette.responses import Response

from relay.bus.http import json_response
from relay.domain.incidents import show_original
from relay.ops.api.access import Operating, Reading, check_payloads
from relay.ops.api.answering import PROBLEMS, Asked, InContext, acted, page_of, paged, row_of
from relay.ops.api.models import (
    MessagesAsked,
    MessagesFilter,
    MessageStatus,
    OutcomeOut,
    PageOut,
    Selection,
    Text,
    as_id,
)
from relay.ops.rows import FindMessages, GetMessage, GroupMessages, RetryMessages

router: Final = APIRouter(prefix="/contexts/{context}/inbox", tags=["inbox"], responses=PROBLEMS)
Chosen = Selection[Text, MessagesFilter]
_FAILING: Final = ["failing"]


@router.get("", response_model=PageOut)
async def list_messages(
    ops: Asked, _: Reading, context: InContext, asked: Annotated[MessagesAsked, Query()]
) -> Response:
    """List messages without their bodies, the last received first."""
    wanted = asked.wanted(list(asked.status or get_args(MessageStatus)))
    return await paged(ops, page_of(FindMessages, context, wanted, asked))


@router.get("/groups", response_model=list[dict[str, Any]])
async def group_messages(
    ops: Asked, _: Reading, context: InContext, asked: Annotated[MessagesAsked, Query()]
) -> Response:
    """Count messages, by default failing ones, by code of the error and subscription, among the newest 10,000."""
    wanted = asked.wanted(list(asked.status or _FAILING))
    return json_response(await ops.recent.ask(ops, GroupMessages(context=context, wanted=wanted)))


@router.get("/{id}", response_model=dict[str, Any])
async def show_message(
    ops: Asked, caller: Reading, context: InContext, id: Text, payload: bool = False
) -> Response:
    """Show a message, and who did what to it. Its body needs the right to see payloads."""
    if payload:
        check_payloads(caller)
    found = await row_of(ops, GetMessage(context=context, id=as_id(id, "id")))
    if isinstance(found, Response):
        return found
    body = show_original(found.pop("body"))
    return json_response({**found, **(body if payload else {})})


@router.post("/retry", response_model=OutcomeOut)
async def retry_messages(ops: Asked, caller: Operating, context: InContext, chosen: Chosen) -> Response:
    """Try messages now that wait for their next attempt. Attempts stay counted."""
    ids = None if chosen.ids is None else [as_id(id, "ids") for id in chosen.ids]
    wanted = None if ids else (chosen.filter or MessagesFilter()).wanted(_FAILING)
    what = {"selection": chosen, "context": context, "ids": ids, "wanted": wanted}
    return await acted(ops, caller, "retry", FindMessages, RetryMessages, what)
