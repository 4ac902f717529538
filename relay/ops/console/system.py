"""Pages of what all contexts share: streams, queues, the fleet."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from relay.adapters.members import LISTED as MEMBERS
from relay.domain.errors import InvalidRequest
from relay.domain.operators import Operator
from relay.domain.queues import JobState
from relay.ops.api.access import Operating, Reading, check_payloads
from relay.ops.api.common import Asked
from relay.ops.api.models import Text
from relay.ops.api.queues import JobsAsked
from relay.ops.api.system import fleet_now
from relay.ops.console.confirmation import Confirmation, note_of
from relay.ops.console.forms import Form, Pairs, read
from relay.ops.console.render import link, page
from relay.ops.kinds import DEAD_JOBS
from relay.ops.queues import DeleteJobs, ListJobs, ListQueues, RequeueJobs
from relay.ops.servers import DiffStreams, ShowStreams

router: Final = APIRouter()
Verb = Literal["requeue", "delete"]


@router.get("/streams")
async def streams(request: Request, ops: Asked, _: Reading) -> Response:
    """Show what streams hold, how far consumers have read, and what differs from relay.toml."""
    shown, differences = await asyncio.gather(
        ops.queries.ask_async(ShowStreams()), ops.queries.ask_async(DiffStreams())
    )
    settings = ops.settings
    return page(
        request,
        "streams.html",
        streams=shown.unwrap(),
        differences=differences.unwrap(),
        limits={it.name: it.max_bytes for it in settings.streams()},
        windows={(it.stream, it.durable): it.max_ack_pending for it in settings.consumers()},
    )


@router.get("/fleet")
async def fleet(request: Request, ops: Asked, _: Reading) -> Response:
    """List workers and supervisors of all hosts, and what each of them runs."""
    return page(request, "fleet.html", fleet=await fleet_now(ops), most=MEMBERS)


@router.get("/queues")
async def queues(request: Request, ops: Asked, _: Reading) -> Response:
    """Count the jobs of each queue in Redis."""
    return page(request, "queues.html", queues=(await ops.queries.ask_async(ListQueues())).unwrap())


class _JobsAsked(JobsAsked):
    queue: Text


@router.get("/queues/jobs")
async def jobs(request: Request, ops: Asked, caller: Reading) -> Response:
    """List dead or delayed jobs of a queue. To see their arguments, a user needs the right to see payloads."""
    asked = read(_JobsAsked, request.query_params.multi_items())
    if asked.args:
        check_payloads(caller)
    query = ListJobs(queue=asked.queue, state=asked.state, limit=asked.limit, after=asked.after)
    found = (await ops.queries.ask_async(query)).unwrap()
    may = caller.operate and asked.state is JobState.DEAD
    return page(request, "jobs.html", kind=DEAD_JOBS, asked=asked, found=found, may=may)


class _JobsChosen(BaseModel):
    queue: Text
    ids: Annotated[list[Text], Field(max_length=500)] = []
    all: bool = False


def _confirmation(verb: Verb, pairs: Pairs) -> tuple[Confirmation, _JobsChosen]:
    asked = read(_JobsChosen, [it for it in pairs if it[0] not in ("note", "state")])
    if bool(asked.ids) == asked.all:
        raise InvalidRequest("say which: tick jobs of a list, or take all dead ones of the queue")
    which = "all dead jobs" if asked.all else "1 job" if len(asked.ids) == 1 else f"{len(asked.ids)} jobs"
    action = DEAD_JOBS.action(verb)
    confirmation = Confirmation(
        button=action.label,
        question=f"{action.label} {which} of {asked.queue}?",
        about=action.about,
        done=action.past,
        to=f"/queues/{verb}",
        back=link("/queues/jobs", queue=asked.queue),
        fields=[
            ("queue", asked.queue),
            *(("ids", it) for it in asked.ids),
            *([("all", "1")] if asked.all else ()),
        ],
        harsh=action.harsh,
    )
    return confirmation, asked


@router.get("/queues/{verb}")
async def ask_jobs(request: Request, _: Operating, verb: Verb) -> Response:
    """Ask before dead jobs are requeued or deleted."""
    return _confirmation(verb, request.query_params.multi_items())[0].ask(request)


@router.post("/queues/{verb}")
async def do_jobs(request: Request, ops: Asked, caller: Operating, verb: Verb, form: Form) -> Response:
    """Requeue or delete dead jobs."""
    confirmation, asked = _confirmation(verb, form)
    do = RequeueJobs if verb == "requeue" else DeleteJobs
    by = Operator(caller.name, note_of(form))
    command = do(queue=asked.queue, ids=None if asked.all else asked.ids, limit=ops.limits.rows, by=by)
    return confirmation.result_page(request, await ops.do(command))
