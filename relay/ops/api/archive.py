"""The archive of a context over HTTP: list batches, verify files, restore rows, replay events; all with limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from starlette.responses import Response

from relay.bus.http import json_response
from relay.commands.archive import FileCheck
from relay.domain.archive import ArchiveKind, RowFilter
from relay.domain.operators import Operator
from relay.ops.api.access import Operating, Reading
from relay.ops.api.common import PROBLEMS, Asked, InContext, Ops, counted
from relay.ops.api.lines import IN_LINES, Lined
from relay.ops.api.models import Moment, OutcomeOut, Selection, Text, filter_model
from relay.ops.api.parts import PartAsked
from relay.ops.archive import (
    BindArchived,
    CountArchived,
    ReplayArchived,
    RestoreArchived,
    VerifyArchive,
    row_filter,
)
from relay.ops.kinds import ARCHIVED, Action
from relay.ops.kinds.shared import EXPIRES_IN
from relay.ops.requests import GetSelection, ListBatches
from relay.ops.selections import keep, look_up

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


class EventsReplayed(EventsChosen):
    """Which archived events. ``expires_in``: how long those whose time is over are worth something, or never."""

    expires_in: Text | None = None


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
    kind, wanted, limit = await _which(ops, context, _RESTORE, chosen.kind, chosen)
    if chosen.dry_run:
        return await _counted(ops, context, _RESTORE, kind, wanted, chosen)
    by = Operator(caller.name, chosen.note, selection=chosen.selection)
    command = RestoreArchived(context=context, kind=kind, wanted=wanted, limit=limit, by=by)
    return await _done(ops, context, _RESTORE, chosen, (await ops.do(command)).unwrap())


@router.post("/replay", response_model=OutcomeOut, name="replay_archived", description=_REPLAY.about)
async def _replay_archived(ops: Asked, caller: Operating, context: InContext, chosen: EventsReplayed) -> Response:
    _, wanted, limit = await _which(ops, context, _REPLAY, ArchiveKind.OUTBOX, chosen)
    if chosen.dry_run:
        return await _counted(ops, context, _REPLAY, ArchiveKind.OUTBOX, wanted, chosen)
    by = Operator(caller.name, chosen.note, selection=chosen.selection)
    longer = None if chosen.expires_in is None else EXPIRES_IN.read(chosen.expires_in, "expires_in")
    command = ReplayArchived(context=context, wanted=wanted, limit=limit, expires_in=longer, by=by)
    return await _done(ops, context, _REPLAY, chosen, (await ops.do(command)).unwrap())


async def _which(
    ops: Ops, context: str, action: Action, kind: ArchiveKind, chosen: EventsChosen
) -> tuple[ArchiveKind, RowFilter, int | None]:
    """Which rows, and how many at most: those of a selection were counted."""
    if chosen.selection is None:
        return kind, chosen_rows(chosen, kind), chosen.limit
    return *await counted_rows(ops, context, action, chosen.selection), None


async def _counted(
    ops: Ops, context: str, action: Action, kind: ArchiveKind, wanted: RowFilter, chosen: EventsChosen
) -> Response:
    wanted = (await ops.queries.ask_async(BindArchived(context=context, kind=kind, wanted=wanted))).unwrap()
    count = (await ops.queries.ask_async(CountArchived(context=context, kind=kind, wanted=wanted))).unwrap()
    kept = chosen.selection or await keep_rows(ops, context, action, kind, wanted)
    return counted(action.name, count, kept)


async def _done(ops: Ops, context: str, action: Action, chosen: EventsChosen, count: int) -> Response:
    """The answer is only a count. The audit log names the files of the rows."""
    body = {"action": action.name, "dry_run": False, "count": count, "done": [], "refused": [], "selection": None}
    deed = None
    if chosen.selection is not None:
        deed = (await ops.queries.ask_async(GetSelection(context=context, id=chosen.selection))).unwrap().deed
    return json_response(body | {"deed": deed, "left": 0, "gone": 0})


def chosen_rows(chosen: EventsChosen, kind: ArchiveKind) -> RowFilter:
    """The filter of a choice. Raises InvalidRequest and InvalidKey, which name the field."""
    narrowed = chosen.filter or ArchivedFilter()
    return row_filter(kind, chosen.ids or (), narrowed.model_dump())


# --- the rows that were counted: those of the batches that were there ---

_ROWS: Final = TypeAdapter(RowFilter)


async def keep_rows(ops: Ops, context: str, action: Action, kind: ArchiveKind, wanted: RowFilter) -> UUID:
    """Keep which rows were counted. ``wanted``: a filter of `BindArchived`."""
    rows = {"kind": kind.value, "rows": _ROWS.dump_python(wanted, mode="json")}
    return await keep(ops, context, ARCHIVED, action, None, rows)


async def counted_rows(ops: Ops, context: str, action: Action, id: UUID) -> tuple[ArchiveKind, RowFilter]:
    """The rows that were counted. Raises as `relay.ops.selections.look_up`."""
    wanted = (await look_up(ops, context, ARCHIVED, action, id)).wanted or {}
    return ArchiveKind(wanted["kind"]), _ROWS.validate_python(wanted["rows"])
