"""The page of an act of the audit log: what it did, what it left, and its undoing."""

from __future__ import annotations

from collections import Counter
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from relay.domain.operators import Operator
from relay.ops.api.access import Operating, Reading
from relay.ops.api.common import Asked, InContext
from relay.ops.api.deeds import DeedId, deed_of
from relay.ops.console.render import deed_path, page
from relay.ops.console.wording import plural
from relay.ops.kinds import OTHERS, act_of
from relay.ops.requests import UndoDeed

router: Final = APIRouter(prefix="/contexts/{context}/audit")
#: Listings by the first word of what the audit log calls an act on their rows, if it is not their path.
_ROOMS: Final = {it.path: it for it in OTHERS.values()}


@router.get("/{id}")
async def deed(request: Request, ops: Asked, _: Reading, context: InContext, id: DeedId) -> Response:
    """Show an act. The page may be kept as a bookmark, and loaded again: nothing is done twice."""
    found = await deed_of(ops, context, id)
    kind, action = act_of(found.action) or (None, None)
    room, _dot, word = found.action.replace(" ", ".").partition(".")
    other = _ROOMS.get(room)
    what = action.label if action else word.capitalize() or found.action
    noun = kind.one if kind else other.one if other and room != "archive" else "key" if found.subject else "row"
    return page(
        request,
        "deed.html",
        context=context,
        deed=found,
        kind=kind or other,
        action=action,
        title=f"{what}: {plural(found.count, noun)}",
        reasons=Counter((it.error.message, it.error.hint) for it in found.refused).most_common(5),
    )


@router.post("/{id}/undo")
async def undo(ops: Asked, caller: Operating, context: InContext, id: DeedId) -> Response:
    """Take an act back, and lead to the page of this act. Raises the first refusal if nothing could be done."""
    command = UndoDeed(context=context, id=id, by=Operator(caller.name))
    outcome = (await ops.do(command)).unwrap()
    if outcome.deed is None:
        raise outcome.refused[0][1]
    return RedirectResponse(deed_path(context, outcome.deed), 303)
