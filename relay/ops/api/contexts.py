"""The rest of a context over HTTP: parked keys, the schedule, the audit log, what is kept how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from relay.bus.http import json_response
from relay.domain.errors import TooMany
from relay.domain.operators import Operator
from relay.ops.api.access import Operating, Reading
from relay.ops.api.common import PROBLEMS, Asked, InContext, Ops, answered, counted, outcome_of
from relay.ops.api.lines import IN_LINES, READ, Lined, in_lines
from relay.ops.api.models import Moment, Number, OutcomeOut, Text
from relay.ops.api.parts import PartAsked
from relay.ops.api.rows_out import listing_model
from relay.ops.kinds import AUDIT, JOBS, PARKED, RETENTION
from relay.ops.requests import (
    TYPED,
    ListParked,
    PauseJob,
    ReadAudit,
    ReadRuns,
    ReadSchedule,
    ReleaseKeys,
    ResumeJob,
    RunJob,
)
from relay.ops.retention import ReadRetention
from relay.ops.selections import keep, look_up

router: Final = APIRouter(prefix="/contexts/{context}", tags=["contexts"], responses=PROBLEMS)
_RELEASE: Final = PARKED.action("release")
#: What every rule says.
RULED: Final = ("place", "name", "ends", "rule")
_STRICT = ConfigDict(extra="forbid", hide_input_in_errors=True)


ParkedKey: Any = listing_model(
    PARKED,
    "ParkedKey",
    "A key that is set aside.",
    "subscription",
    "key",
    "since",
    "waiting",
)
ScheduledJob: Any = listing_model(
    JOBS, "ScheduledJob", "A job of the schedule: a cron job, or a duty of the relay.", "name", "schedule"
)
AuditEntry: Any = listing_model(
    AUDIT, "AuditEntry", "What somebody did.", "id", "at", "actor", "action", "count", "ids"
)
KeptOut: Any = listing_model(
    RETENTION, "Kept", "Something that is kept: by which rule, and how much of it there is.", *RULED
)


class ScheduleOut(BaseModel):
    """What is scheduled. ``leader``: the scheduler that leads; null if none does. ``jobs``: by their names."""

    leader: str | None
    jobs: list[ScheduledJob]


class JobRequestedOut(BaseModel):
    """A run that somebody has asked for. ``name``: of the job. ``requested_at``: when this was first asked for.

    ``runs``: where to ask how it goes.
    """

    name: str
    requested_at: datetime
    runs: str


class CronRunOut(BaseModel):
    """A run of a cron job. ``who``: host and process of its worker. ``correlation_id`` finds its life.

    ``scheduled_for``: when it was due, or asked for. ``seconds``: how long it took.
    """

    job: str
    scheduled_for: datetime
    state: str
    opened_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempts: int
    error: str | None
    who: str | None
    correlation_id: str
    seconds: float | None


class JobPausedOut(BaseModel):
    """A job after a pause or its end. ``name``: of the job. ``paused``: whether it begins no runs now."""

    name: str
    paused: bool


class Keys(BaseModel):
    """Which parked keys: ``keys`` by their names, ``all``, maybe of one ``subscription``, or a ``selection``.

    ``dry_run``: count, and change nothing. The answer has a ``selection``: given back, those keys are released,
    once.
    """

    model_config = _STRICT

    keys: Annotated[list[Text], Field(min_length=1, max_length=10_000)] | None = None
    all: bool = False
    selection: UUID | None = None
    subscription: Text | None = None
    note: Text | None = None
    dry_run: bool = False

    @model_validator(mode="after")
    def _one_way(self) -> Keys:
        if (self.keys is not None) + self.all + (self.selection is not None) != 1:
            raise ValueError("say which, in one way: keys, all, or a selection")
        return self


class Why(BaseModel):
    """Why an operator acts."""

    model_config = _STRICT

    note: Text | None = None


class AuditAsked(BaseModel):
    """Which entries of the audit log. ``id``: about this row. ``before``: the last ``id`` of the page above."""

    model_config = _STRICT

    actor: Text | None = None
    action: Text | None = None
    id: Text | None = None
    since: Moment | None = None
    until: Moment | None = None
    before: Number | None = None
    limit: Annotated[int, Field(ge=1, le=500)] = 50


@router.get(
    "/parked",
    response_model=list[ParkedKey],
    responses=IN_LINES,
    name="list_parked_keys",
    description=PARKED.listing,
)
async def _list_parked_keys(
    ops: Asked, _: Reading, context: InContext, asked: Annotated[PartAsked, Query()], lined: Lined
) -> Response:
    async def part(which: PartAsked) -> Sequence[Any]:
        return (await ops.queries.ask_async(ListParked(context=context, **which.one_more()))).unwrap()

    return await asked.lines(ops.downloads, part) if lined else asked.answer(await part(asked))


@router.post(
    "/parked/release", response_model=OutcomeOut, name="release_keys", description=PARKED.action("release").about
)
async def _release_keys(ops: Asked, caller: Operating, context: InContext, chosen: Keys) -> Response:
    names: Sequence[str] | None = None
    if chosen.selection is not None:
        names = (await look_up(ops, context, PARKED, _RELEASE, chosen.selection)).ids
    if chosen.dry_run:
        if names is None:
            names = await parked_names(ops, context, chosen.keys, chosen.subscription)
        kept = chosen.selection or await keep(ops, context, PARKED, _RELEASE, names, None)
        return counted(_RELEASE.name, len(names), kept)
    by = Operator(caller.name, chosen.note, selection=chosen.selection)
    which = {"keys": chosen.keys, "subscription": chosen.subscription, "counted": names}
    return outcome_of(_RELEASE.name, await ops.do(ReleaseKeys(context=context, **which, by=by)), context)


async def parked_names(
    ops: Ops, context: str, keys: Sequence[str] | None, subscription: str | None
) -> Sequence[str]:
    """The keys that are parked, by the names that the audit log has. Raises TooMany."""
    query = ListParked(context=context, subscription=subscription, limit=TYPED + 1)
    found = (await ops.queries.ask_async(query)).unwrap()
    if len(found) > TYPED:
        raise TooMany(f"more than {TYPED:,} keys are parked", hint="name keys or a subscription")
    return [f"{it['subscription']}/{it['key']}" for it in found if keys is None or it["key"] in keys]


@router.get(
    "/schedule",
    response_model=ScheduleOut,
    responses=IN_LINES,
    name="show_schedule",
    description=JOBS.listing,
)
async def _show_schedule(
    ops: Asked, _: Reading, context: InContext, asked: Annotated[PartAsked, Query()], lined: Lined
) -> Response:
    async def part(which: PartAsked) -> Sequence[Any]:
        return (await ops.queries.ask_async(ReadSchedule(context=context, **which.one_more()))).unwrap().jobs

    if lined:
        return await asked.lines(ops.downloads, part)
    found = (await ops.queries.ask_async(ReadSchedule(context=context, **asked.one_more()))).unwrap()
    return asked.answer(found.jobs, lambda jobs: asdict(replace(found, jobs=tuple(jobs))))


@router.post(
    "/schedule/{name}/run",
    response_model=JobRequestedOut,
    status_code=202,
    name="run_job",
    description=f"{JOBS.action('run').about} The answer says when this was first requested; "
    "`runs` is where to ask how it goes.",
)
async def _run_job(ops: Asked, caller: Operating, context: InContext, name: Text, why: Why) -> Response:
    command = RunJob(context=context, name=name, by=Operator(caller.name, why.note))
    result = await ops.do(command)
    requested_at = result.unwrap()
    runs = f"/api/v1/contexts/{context}/schedule/{quote(name, safe='')}/runs?" + urlencode(
        {"scheduled_for": requested_at.isoformat()}
    )
    response = json_response({"name": name, "requested_at": requested_at, "runs": runs}, 202)
    response.headers["Location"] = runs
    return response


class _RunsAsked(BaseModel):
    """``scheduled_for``: only the run that was due, or asked for, at this time, or the one that stands for it."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    limit: Annotated[int, Field(ge=1, le=100)] = 20
    scheduled_for: Moment | None = None


@router.get(
    "/schedule/{name}/runs",
    response_model=list[CronRunOut],
    name="list_runs",
    description="List the last runs of a cron job, the newest first. `correlation_id` finds the life of one.",
)
async def _list_runs(
    ops: Asked, _: Reading, context: InContext, name: Text, asked: Annotated[_RunsAsked, Query()]
) -> Response:
    query = ReadRuns(context=context, name=name, limit=asked.limit, asked=asked.scheduled_for)
    found = (await ops.queries.ask_async(query)).unwrap()
    return json_response([{**asdict(it), "seconds": it.seconds} for it in found])


@router.post(
    "/schedule/{name}/pause",
    response_model=JobPausedOut,
    name="pause_job",
    description=JOBS.action("pause").about,
)
async def _pause_job(ops: Asked, caller: Operating, context: InContext, name: Text, why: Why) -> Response:
    by = Operator(caller.name, why.note)
    (await ops.do(PauseJob(context=context, name=name, by=by))).unwrap()
    return json_response({"name": name, "paused": True})


@router.post(
    "/schedule/{name}/resume",
    response_model=JobPausedOut,
    name="resume_job",
    description=JOBS.action("resume").about,
)
async def _resume_job(ops: Asked, caller: Operating, context: InContext, name: Text, why: Why) -> Response:
    by = Operator(caller.name, why.note)
    (await ops.do(ResumeJob(context=context, name=name, by=by))).unwrap()
    return json_response({"name": name, "paused": False})


@router.get(
    "/audit", response_model=list[AuditEntry], responses=IN_LINES, name="read_audit", description=AUDIT.listing
)
async def _read_audit(
    ops: Asked, _: Reading, context: InContext, asked: Annotated[AuditAsked, Query()], lined: Lined
) -> Response:
    if lined:
        return await _audit_lines(ops, context, asked)
    return await answered(ops, ReadAudit(context=context, **asked.model_dump()))


async def _audit_lines(ops: Ops, context: str, asked: AuditAsked) -> Response:
    one = "limit" in asked.model_fields_set
    query = ReadAudit(context=context, **asked.model_dump() | ({} if one else {"limit": READ}))

    async def page(before: Any) -> tuple[Sequence[Any], Any]:
        which = query if before is None else query.model_copy(update={"before": before})
        found = (await ops.queries.ask_async(which)).unwrap()
        return found, found[-1]["id"] if len(found) == query.limit and not one else None

    return await in_lines(ops.downloads, page)


@router.get(
    "/retention",
    response_model=list[KeptOut],
    name="show_retention",
    description=RETENTION.listing,
)
async def _show_retention(ops: Asked, _: Reading, context: InContext) -> Response:
    found = (await ops.queries.ask_async(ReadRetention(context=context))).unwrap()
    return json_response([it.row() for it in found])
