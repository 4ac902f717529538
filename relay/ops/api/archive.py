"""The archive of a context over HTTP: list batches, verify files, restore rows, replay events; all with limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from relay.bus.http import json_response
from relay.commands.archive import FileCheck
from relay.domain.archive import ArchiveKind, RowFilter
from relay.domain.operators import Operator
from relay.ops.api.access import Operating, Reading
from relay.ops.api.common import PROBLEMS, Asked, InContext
from relay.ops.api.lines import IN_LINES, Lined
from relay.ops.api.models import Moment, OutcomeOut, Selection, Text, filter_model
from relay.ops.api.parts import PartAsked
from relay.ops.archive import CountArchived, ReplayArchived, RestoreArchived, VerifyArchive, row_filter
from relay.ops.kinds import ARCHIVED
from relay.ops.requests import ListBatches

router: Final = APIRouter(prefix="/contexts/{context}/archive", tags=["archive"], responses=PROBLEMS)
_RESTORE, _REPLAY = ARCHIVED.action("restore"), ARCHIVED.action("replay")
_STRICT = ConfigDict(extra="forbid", hide_input_in_errors=True)


ArchivedFilter: Any = filter_model("ArchivedFilter", "Which archived rows.", ARCHIVED.filters)


class Files(BaseModel):
    """Which files: those named, those of a ``kind``, those that may have rows which ended then; or all.

    Nothing is done if there are more than ``limit``. Files that no batch names are found only where all are read.
    """

    model_config = _STRICT

    files: Annotated[list[Text], Field(max_length=1_000)] = []
    kind: ArchiveKind | None = None
    since: Moment | None = None
    until: Moment | None = None
    limit: Annotated[int, Field(ge=1, le=1_000)] = 100


class EventsChosen(Selection[Text, ArchivedFilter]):
    """Which archived events, as for other actions, up to 10,000."""

    limit: Annotated[int, Field(ge=1, le=10_000)] = 1_000


class RowsChosen(EventsChosen):
    """Which archived rows of a ``kind``."""

    kind: ArchiveKind = ArchiveKind.OUTBOX


class VerifiedOut(BaseModel):
    """What was read again. ``sound``: how many files are as they should be. ``findings``: the others."""

    sound: int
    findings: list[FileCheck]


class BatchOut(BaseModel):
    """A batch of rows in the archive."""

    context: str
    kind: ArchiveKind
    number: int
    rows: int
    size: int
    sha256: str
    first_id: UUID
    first_at: datetime
    last_id: UUID
    last_at: datetime
    file: str


@router.get(
    "", response_model=list[BatchOut], responses=IN_LINES, name="list_batches", description=ARCHIVED.listing
)
async def _list_batches(
    ops: Asked, _: Reading, context: InContext, asked: Annotated[PartAsked, Query()], lined: Lined
) -> Response:
    async def part(which: PartAsked) -> Sequence[Any]:
        found = (await ops.queries.ask_async(ListBatches(context=context, **which.one_more()))).unwrap()
        return [{**asdict(it), "file": it.file} for it in found]

    return await asked.lines(ops.downloads, part) if lined else asked.answer(await part(asked))


@router.post("/verify", response_model=VerifiedOut)
async def verify_files(ops: Asked, _: Operating, context: InContext, files: Files) -> Response:
    """Read files again and compare them with their manifests, for 20 s at most."""
    found = (await ops.queries.ask_async(VerifyArchive(context=context, **dict(files)))).unwrap()
    doubtful = [asdict(it) for it in found if it.error or it.left_over]
    return json_response({"sound": len(found) - len(doubtful), "findings": doubtful})


@router.post("/restore", response_model=OutcomeOut, name="restore_rows", description=_RESTORE.about)
async def _restore_rows(ops: Asked, caller: Operating, context: InContext, chosen: RowsChosen) -> Response:
    wanted, kind = chosen_rows(chosen, chosen.kind), chosen.kind
    if chosen.dry_run:
        return await _counted(ops, _RESTORE.name, CountArchived(context=context, kind=kind, wanted=wanted))
    by = Operator(caller.name, chosen.note)
    command = RestoreArchived(context=context, kind=kind, wanted=wanted, limit=chosen.limit, by=by)
    return _done(_RESTORE.name, (await ops.do(command)).unwrap())


@router.post("/replay", response_model=OutcomeOut, name="replay_archived", description=_REPLAY.about)
async def _replay_archived(ops: Asked, caller: Operating, context: InContext, chosen: EventsChosen) -> Response:
    wanted = chosen_rows(chosen, ArchiveKind.OUTBOX)
    if chosen.dry_run:
        query = CountArchived(context=context, kind=ArchiveKind.OUTBOX, wanted=wanted)
        return await _counted(ops, _REPLAY.name, query)
    by = Operator(caller.name, chosen.note)
    command = ReplayArchived(context=context, wanted=wanted, limit=chosen.limit, by=by)
    return _done(_REPLAY.name, (await ops.do(command)).unwrap())


async def _counted(ops: Asked, action: str, query: CountArchived) -> Response:
    return _done(action, (await ops.queries.ask_async(query)).unwrap(), dry_run=True)


def _done(action: str, count: int, *, dry_run: bool = False) -> Response:
    """The answer is only a count. The audit log names the files of the rows."""
    return json_response({"action": action, "dry_run": dry_run, "count": count, "done": [], "refused": []})


def chosen_rows(chosen: EventsChosen, kind: ArchiveKind) -> RowFilter:
    """The filter of a choice. Raises InvalidRequest and InvalidKey, which name the field."""
    narrowed = chosen.filter or ArchivedFilter()
    return row_filter(kind, chosen.ids or (), narrowed.model_dump())
