"""The whole system over HTTP: backlogs of all contexts, the life of a message, what is wrong, and the probes."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field, StringConstraints
from starlette.responses import Response

from relay.adapters.jetstream.topology import Difference, StreamView
from relay.bus import Some
from relay.bus.http import as_response, error_body, json_response
from relay.domain.backlogs import FullInbox, InboxBacklog, OutboxBacklog
from relay.domain.errors import RelayError, of_context
from relay.domain.findings import SHOWN, Diagnosis, Finding, ProcessKind, Severity
from relay.domain.identity import check_id
from relay.domain.life import Life
from relay.domain.members import CrewReport, Seen, State, Usage
from relay.domain.running import FleetNow, RunningRow
from relay.ops.alarms.showing import alarms_json
from relay.ops.alarms.watch import ReadAlarms
from relay.ops.api.access import Reading
from relay.ops.api.answers import in_json
from relay.ops.api.common import PROBLEMS, Asked, Ops
from relay.ops.api.models import AlarmsOut, Problem, Text
from relay.ops.find import Find, FoundRows
from relay.ops.fleet import read_fleet
from relay.ops.queries import Diagnose, Explain
from relay.ops.requests import Backlog, ReadBacklog, ReadRunning, RunsNow
from relay.ops.servers import DiffStreams, ListMembers, ShowStreams

router: Final = APIRouter(tags=["system"], responses=PROBLEMS)
probes: Final = APIRouter(tags=["probes"])


#: What operators search with: see `relay.domain.search`.
Line = Annotated[
    str,
    StringConstraints(min_length=1, max_length=300),
    Field(description="Such as: customer:47 reason:timeout since:6h type:order_*", examples=["reason:timeout"]),
]


class BrakeOut(BaseModel):
    """What a full outbox does to its producers. ``action``: warn, delay or refuse. ``since``: when it began."""

    action: str
    reason: str | None
    since: datetime | None


class BacklogOut(BaseModel):
    """What waits in a context. ``context``: its name. ``outbox``: events. ``inbox``: messages.

    ``brake``: what a full outbox does to its producers; null if nothing. ``full``: inboxes that are nearly full.
    ``error``: why the context does not answer; then there is nothing else.
    """

    context: str
    outbox: OutboxBacklog | None = None
    inbox: InboxBacklog | None = None
    brake: BrakeOut | None = None
    full: list[FullInbox] = []
    error: Problem | None = None


class ServerOut(BaseModel):
    """A server that was asked."""

    server: str
    healthy: bool
    milliseconds: float


class ExaminedOut(ServerOut):
    """A server, or one other thing, that was examined."""

    detail: str


class ProbedOut(ServerOut):
    """A server, and what is wrong with it. ``errors``: codes."""

    errors: list[str]


class DoctorOut(BaseModel):
    """What is wrong. ``findings``: the worst first. ``total``: how many there are. ``examined``: all servers."""

    findings: list[Finding]
    total: int
    examined: list[ExaminedOut]


class MemberOut(BaseModel):
    """A process of the fleet. ``kind``: worker or supervisor. ``id``: no other process ever has it.

    ``place``: within it a ``pid`` names one process. ``command``: the process of the `dramatiq` command that a
    worker belongs to. ``fleet``: the id of the supervisor that started it.
    ``up_seconds``: for how long it has run. ``publishes``: whether it takes jobs that publish.
    ``version``: of jetrelay. ``release``: of the application.
    """

    id: str
    kind: str
    host: str
    pid: int
    place: str
    command: int | None
    fleet: str | None
    version: str
    release: str
    state: State
    up_seconds: float
    publishes: bool
    listens: list[str]
    usage: Usage | None
    crew: CrewReport | None
    silent_seconds: float


class RunningOut(BaseModel):
    """A row that a worker holds now. ``kind``: message, task or run. ``part``: its subscription, queue or job.

    ``since``: when it was claimed. ``member``: the id of its worker in the fleet; null if that is no member.
    ``limit``: how many seconds its handler may take, if that is known; ``too_long``: whether it has had more.
    """

    context: str
    kind: str
    id: str
    part: str | None
    name: str | None
    attempts: int
    since: datetime | None
    worker: str | None
    limit: float | None
    member: str | None
    seconds: float | None
    too_long: bool


class StreamsOut(BaseModel):
    """The streams of contexts. ``streams``: what they hold. ``differences``: what is not as relay.toml says."""

    streams: list[StreamView]
    differences: list[Difference]


class AliveOut(BaseModel):
    """The process answers. ``status``: ok."""

    status: str


class ReadyOut(BaseModel):
    """Whether the console can answer. ``ready``: whether a database answers. ``servers``: each with its errors."""

    ready: bool
    servers: list[ProbedOut]


@router.get("/contexts", response_model=list[str])
async def list_contexts(ops: Asked, _: Reading) -> Response:
    """Name the contexts of the configuration."""
    return json_response(list(ops.settings.contexts))


@router.get("/backlogs", response_model=list[BacklogOut])
async def list_backlogs(ops: Asked, _: Reading, context: Annotated[Text | None, Query()] = None) -> Response:
    """Say how much waits in each context, and since when.

    A context that does not answer has an ``error`` instead.
    """
    contexts = ops.settings.contexts
    names = list(contexts) if context is None else [of_context(contexts, context).name]
    return json_response(await asyncio.gather(*(_backlog(ops, name) for name in names)))


async def _backlog(ops: Ops, name: str) -> dict[str, Any]:
    try:
        found: Backlog = (await ops.queries.ask_async(ReadBacklog(context=name))).unwrap()
    except RelayError as error:
        return {"context": name, **error_body(error)}
    outbox, inbox, brake, full = found
    return {
        "context": name,
        "outbox": asdict(outbox),
        "inbox": asdict(inbox),
        "brake": asdict(brake) if brake.braking else None,
        "full": [asdict(it) for it in full],
    }


@router.get("/explain", response_model=Life)
async def explain(ops: Asked, _: Reading, id: Annotated[Text, Query()], archive: bool = False) -> Response:
    """Show the life of a message by any id of it or of its chain, as `relay explain` does; no payloads.

    ``archive``: also search the archives, which may take long.
    """
    found = await ops.queries.ask_async(Explain(id=str(check_id(id, "id").value), archive=archive))
    return in_json(asdict(found.value)) if isinstance(found, Some) else as_response(found)


@router.get("/find", response_model=FoundRows)
async def find(ops: Asked, _: Reading, q: Annotated[Line, Query()]) -> Response:
    """Find rows of all kinds in all contexts by one line, as `relay find` does; no payloads.

    A context that does not answer within 5 s is named in ``unread``.
    """
    return in_json(asdict((await ops.queries.ask_async(Find(text=q))).unwrap()))


@router.get("/doctor", response_model=DoctorOut)
async def doctor(ops: Asked, _: Reading) -> Response:
    """Say which conditions are not met and what to change, the worst first, as `relay doctor` does."""
    found = await ops.recent.ask(ops, Diagnose(close=True))
    examined = [
        {"server": it.server, "healthy": it.healthy, "milliseconds": it.milliseconds, "detail": it.detail[:SHOWN]}
        for it in found.examined
    ]
    shown = [asdict(it) for it in found.first(SHOWN)]
    return in_json({"findings": shown, "total": len(found.findings), "examined": examined})


@router.get("/alarms", response_model=AlarmsOut)
async def list_alarms(ops: Asked, _: Reading, context: Annotated[Text | None, Query()] = None) -> Response:
    """List the rules that hold now, the worst first, as `relay alarms` does. They are those of Prometheus."""
    name = None if context is None else of_context(ops.settings.contexts, context).name
    return in_json(alarms_json((await ops.queries.ask_async(ReadAlarms(context=name))).unwrap()))


@router.get("/fleet", response_model=list[MemberOut])
async def list_members(ops: Asked, _: Reading) -> Response:
    """List workers and supervisors of all hosts: version, state, and what they do."""
    seen = (await ops.queries.ask_async(ListMembers())).unwrap()
    return json_response([_member_out(it) for it in seen])


def _member_out(it: Seen) -> dict[str, Any]:
    found = asdict(it.member) | {"state": it.state, "silent_seconds": it.silent_seconds}
    del found["handles"]
    return found


@router.get("/fleet/running", response_model=list[RunningOut])
async def list_running(ops: Asked, _: Reading) -> Response:
    """List what runs now in all contexts: message, task or run of a cron job, since when, in which worker.

    ``too_long``: it has had more time than its handler may take. ``member``: the id of its worker in the fleet.
    """
    fleet = await fleet_now(ops)
    now = datetime.now(UTC)
    held = [(it, id) for id, rows in fleet.running.items() for it in rows] + [(it, None) for it in fleet.others]
    return json_response([_running_out(it, id, now) for it, id in held])


def _running_out(it: RunningRow, member: str | None, now: datetime) -> dict[str, Any]:
    found = asdict(it) | {"member": member, "seconds": it.seconds(now), "too_long": it.too_long(now)}
    del found["mark"]
    return found


async def fleet_now(ops: Ops) -> FleetNow:
    """The fleet with what it runs. Raises QueueUnreachable."""

    async def ask(context: str) -> RunsNow:
        return (await ops.queries.ask_async(ReadRunning(context=context))).unwrap()

    return await read_fleet((await ops.queries.ask_async(ListMembers())).unwrap(), ops.settings.contexts, ask)


@router.get("/streams", response_model=StreamsOut)
async def list_streams(ops: Asked, _: Reading, context: Annotated[Text | None, Query()] = None) -> Response:
    """Say what streams hold, how far consumers have come, and what differs from relay.toml."""
    found = (await ops.queries.ask_async(ShowStreams(context=context))).unwrap()
    differences = (await ops.queries.ask_async(DiffStreams(context=context))).unwrap()
    return json_response({"streams": found, "differences": differences})


# --- probes: open to all, so they show nothing that only a reader may know ---


@probes.get("/healthz", response_model=AliveOut)
async def alive() -> Response:
    """Say that the process answers."""
    return json_response({"status": "ok"})


@probes.get(
    "/readyz",
    response_model=ReadyOut,
    responses={503: {"model": ReadyOut, "description": "no database answers"}},
)
async def ready(ops: Asked) -> Response:
    """Name each server with the time it took, and the codes of its errors. 503 if no database answers."""
    # As a process asks: a backlog that stands still is no reason to take the console away.
    found = await ops.recent.ask(ops, Diagnose(process=ProcessKind.WORKER))
    databases = [it.healthy for it in found.examined if it.server.startswith("postgresql")]
    answers = any(databases) or not databases
    return json_response({"ready": answers, "servers": servers(found)}, 200 if answers else 503)


def servers(found: Diagnosis) -> list[dict[str, Any]]:
    """Each server of a diagnosis, with its time and the codes of its errors."""
    return [
        {
            "server": it.server,
            "healthy": it.healthy,
            "milliseconds": it.milliseconds,
            "errors": [finding.code for finding in it.findings if finding.severity is Severity.ERROR],
        }
        for it in found.examined
    ]
