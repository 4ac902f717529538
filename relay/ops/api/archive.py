"""The archive of a context over HTTP: list batches, verify files, restore rows, replay events; all with limits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import APIRouter
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from starlette.responses import Response

from relay.bus.http import json_response
from relay.domain.archive import ArchiveKind, RowFilter
from relay.domain.errors import InvalidRequest
from relay.domain.identity import Id, Identity
from relay.domain.operators import Operator
from relay.domain.topology import is_pattern
from relay.ops.api.access import Operating, Reading
from relay.ops.api.common import PROBLEMS, Asked, InContext
from relay.ops.api.models import OutcomeOut, Selection, Text, as_id
from relay.ops.archive import CountArchived, ReplayArchived, RestoreArchived, VerifyArchive
from relay.ops.requests import ListBatches

router: Final = APIRouter(prefix="/contexts/{context}/archive", tags=["archive"], responses=PROBLEMS)
_STRICT = ConfigDict(extra="forbid", hide_input_in_errors=True)


class ArchivedFilter(BaseModel):
    """Which archived rows. ``subject`` may be a pattern. ``since`` and ``until``: when they ended."""

    model_config = _STRICT

    subject: Text | None = None
    type: Text | None = None
    key: Text | None = None
    correlation_id: Text | None = None
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None


class Files(BaseModel):
    """Which files: those named, those of a ``kind``, those that may have rows which ended then; or all.

    Nothing is done if there are more than ``limit``. Files that no batch names are found only where all are read.
    """

    model_config = _STRICT

    files: Annotated[list[Text], Field(max_length=1_000)] = []
    kind: ArchiveKind | None = None
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None
    limit: Annotated[int, Field(ge=1, le=1_000)] = 100


class EventsChosen(Selection[Text, ArchivedFilter]):
    """Which archived events, as for other actions, up to 10,000."""

    limit: Annotated[int, Field(ge=1, le=10_000)] = 1_000


class RowsChosen(EventsChosen):
    """Which archived rows of a ``kind``."""

    kind: ArchiveKind = ArchiveKind.OUTBOX


class VerifiedOut(BaseModel):
    """``sound``: how many files are as they should be. ``findings``: the others."""

    sound: int
    findings: list[dict[str, Any]]


@router.get("", response_model=list[dict[str, Any]])
async def list_batches(ops: Asked, _: Reading, context: InContext) -> Response:
    """List the batches in the archive."""
    found = (await ops.queries.ask_async(ListBatches(context=context))).unwrap()
    return json_response([{**asdict(it), "file": it.file} for it in found])


@router.post("/verify", response_model=VerifiedOut)
async def verify_files(ops: Asked, _: Operating, context: InContext, files: Files) -> Response:
    """Read files again and compare them with their manifests, for 20 s at most."""
    found = (await ops.queries.ask_async(VerifyArchive(context=context, **dict(files)))).unwrap()
    doubtful = [asdict(it) for it in found if it.error or it.left_over]
    return json_response({"sound": len(found) - len(doubtful), "findings": doubtful})


@router.post("/restore", response_model=OutcomeOut)
async def restore_rows(ops: Asked, caller: Operating, context: InContext, chosen: RowsChosen) -> Response:
    """Put archived rows back into their table, as they were. Nothing is sent, and the archive keeps them."""
    wanted, kind = row_filter(chosen, chosen.kind), chosen.kind
    if chosen.dry_run:
        return await _counted(ops, "restore", CountArchived(context=context, kind=kind, wanted=wanted))
    by = Operator(caller.name, chosen.note)
    command = RestoreArchived(context=context, kind=kind, wanted=wanted, limit=chosen.limit, by=by)
    return _done("restore", (await ops.do(command)).unwrap())


@router.post("/replay", response_model=OutcomeOut)
async def replay_archived(ops: Asked, caller: Operating, context: InContext, chosen: EventsChosen) -> Response:
    """Publish archived events once more, to every consumer of the stream. The archive keeps them."""
    wanted = row_filter(chosen, ArchiveKind.OUTBOX)
    if chosen.dry_run:
        query = CountArchived(context=context, kind=ArchiveKind.OUTBOX, wanted=wanted)
        return await _counted(ops, "replay", query)
    by = Operator(caller.name, chosen.note)
    command = ReplayArchived(context=context, wanted=wanted, limit=chosen.limit, by=by)
    return _done("replay", (await ops.do(command)).unwrap())


async def _counted(ops: Asked, action: str, query: CountArchived) -> Response:
    return _done(action, (await ops.queries.ask_async(query)).unwrap(), dry_run=True)


def _done(action: str, count: int, *, dry_run: bool = False) -> Response:
    """The answer is only a count. The audit log names the files of the rows."""
    return json_response({"action": action, "dry_run": dry_run, "count": count, "done": [], "refused": []})


def row_filter(chosen: EventsChosen, kind: ArchiveKind) -> RowFilter:
    """The filter of a choice. Raises InvalidRequest and InvalidKey, which name the field."""
    asked = chosen.filter or ArchivedFilter()
    if asked.subject is not None and (kind is ArchiveKind.TASKS or not is_pattern(asked.subject)):
        raise InvalidRequest("is not a pattern of subjects, or tasks have no subject", field="subject")
    correlation = as_id(asked.correlation_id, "correlation_id")
    ids = [as_id(id, "ids") for id in chosen.ids or ()]
    return RowFilter(
        ids=frozenset(_uuid(id) for id in ids if id is not None),
        subject=asked.subject,
        type=asked.type,
        key=asked.key,
        correlation=None if correlation is None else _uuid(correlation),
        since=asked.since,
        until=asked.until,
    )


def _uuid(id: Id) -> Any:
    return Identity.of(str(id)).uuid
