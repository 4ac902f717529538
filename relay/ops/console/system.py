"""Pages of what all contexts share: streams, queues, the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal
from uuid import UUID

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import RedirectResponse, Response

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
from relay.ops.console.forms import Form, read
from relay.ops.console.render import deed_path, link, page
from relay.ops.console.row_actions import used_by
from relay.ops.console.wording import plural
from relay.ops.kinds import DEAD_JOBS
from relay.ops.queues import DeleteJobs, FindDeadJobs, ListJobs, ListQueues, RequeueJobs
from relay.ops.selections import keep, look_up
from relay.ops.servers import DiffStreams, ShowStreams
from relay.settings import Settings

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
        owners=_owners(settings),
        windows={(it.stream, it.durable): it.max_ack_pending for it in settings.consumers()},
    )


def _owners(settings: Settings) -> Mapping[tuple[str, str], Sequence[tuple[str, str]]]:
    """The context and the name of each subscription, by its stream and its consumer."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for context, of in settings.contexts.items():
        for name, it in of.subscriptions.items():
            found.setdefault((it.stream, it.durable), []).append((context, name))
    return found


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


def _confirmation(verb: Verb, queue: str, context: str, ids: Sequence[str], selection: UUID) -> Confirmation:
    action = DEAD_JOBS.action(verb)
    return Confirmation(
        button=action.label,
        question=f"{action.label} {plural(len(ids), 'dead job')} of {queue}?",
        about=action.about,
        done=action.past,
        to=f"/queues/{verb}",
        back=link("/queues/jobs", queue=queue),
        fields=[("queue", queue), ("context", context), ("selection", str(selection))],
        harsh=action.harsh,
    )


@router.get("/queues/{verb}")
async def ask_jobs(request: Request, ops: Asked, _: Operating, verb: Verb) -> Response:
    """Count dead jobs, keep which they are, and ask before they are requeued or deleted."""
    pairs = [it for it in request.query_params.multi_items() if it[0] not in ("note", "state")]
    asked = read(_JobsChosen, pairs)
    if bool(asked.ids) == asked.all:
        raise InvalidRequest("say which: tick jobs of a list, or take all dead ones of the queue")
    query = FindDeadJobs(queue=asked.queue, ids=None if asked.all else asked.ids, limit=ops.limits.rows)
    context, ids = (await ops.queries.ask_async(query)).unwrap()
    selection = await keep(ops, context, DEAD_JOBS, DEAD_JOBS.action(verb), ids, None)
    return _confirmation(verb, asked.queue, context, ids, selection).ask(request)


class _JobsCounted(BaseModel):
    """``context``: has the selection."""

    queue: Text
    context: Text
    selection: UUID


@router.post("/queues/{verb}")
async def do_jobs(request: Request, ops: Asked, caller: Operating, verb: Verb, form: Form) -> Response:
    """Requeue or delete the dead jobs that were counted, once, and lead to the page of the deed."""
    asked = read(_JobsCounted, [it for it in form if it[0] != "note"])
    if (deed := await used_by(ops, asked.context, form)) is not None:
        return RedirectResponse(deed_path(asked.context, deed), 303)
    selected = await look_up(ops, asked.context, DEAD_JOBS, DEAD_JOBS.action(verb), asked.selection)
    ids, do = selected.ids or (), RequeueJobs if verb == "requeue" else DeleteJobs
    by = Operator(caller.name, note_of(form), selection=asked.selection)
    result = await ops.do(do(queue=asked.queue, ids=ids, home=asked.context, by=by))
    if (deed := result.unwrap().deed) is not None:
        return RedirectResponse(deed_path(asked.context, deed), 303)
    return _confirmation(verb, asked.queue, asked.context, ids, asked.selection).result_page(request, result)
