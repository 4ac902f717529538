"""One act of the audit log over HTTP: what it did to which rows, and its undoing."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path
from starlette.responses import Response

from relay.adapters.postgres.subject_keys import FORGET
from relay.bus import Nothing
from relay.bus.errors import NothingFound
from relay.domain.operators import Operator
from relay.ops.api.access import Operating, Reading
from relay.ops.api.answers import in_json
from relay.ops.api.common import PROBLEMS, Asked, InContext, Ops, outcome_of
from relay.ops.api.contexts import Why
from relay.ops.api.models import DeedOut, Number, OutcomeOut
from relay.ops.kinds import AUDIT, act_of
from relay.ops.requests import GetDeed, UndoDeed

router: Final = APIRouter(prefix="/contexts/{context}/audit", tags=["contexts"], responses=PROBLEMS)
DeedId = Annotated[Number, Path(description="The number of an act in the audit log.")]


async def deed_of(ops: Ops, context: str, id: int) -> DeedOut:
    """One act of the audit log. Raises NothingFound."""
    found = await ops.queries.ask_async(GetDeed(context=context, id=id))
    if isinstance(found, Nothing):
        raise NothingFound(f"{context} has no act {id} in its audit log", hint="relay audit list")
    row = dict(found.value)
    about = row.pop("about") or {}
    act = act_of(row["action"])
    refused = [
        {"id": id, "error": {"code": code, "message": message, "hint": hint}}
        for id, code, message, hint in about.get("refused", ())
    ]
    more = {name: about.get(name, 0) for name in ("refusals", "left", "gone")}
    undo = act[1].undo or None if act else None
    subject = about.get("subject") if row["action"] == FORGET else None
    return DeedOut(**row, **more, refused=refused, undo=undo, subject=subject)


@router.get("/{id}", response_model=DeedOut)
async def show_deed(ops: Asked, _: Reading, context: InContext, id: DeedId) -> Response:
    """Show one act: who did what to which rows, when and why, and whether it was undone."""
    return in_json((await deed_of(ops, context, id)).model_dump())


@router.post("/{id}/undo", response_model=OutcomeOut, name="undo_deed", description=AUDIT.action("undo").about)
async def _undo_deed(ops: Asked, caller: Operating, context: InContext, id: DeedId, why: Why) -> Response:
    command = UndoDeed(context=context, id=id, by=Operator(caller.name, why.note))
    return outcome_of("undo", await ops.do(command), context)
