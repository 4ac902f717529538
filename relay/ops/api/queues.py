"""The queues in Redis over HTTP: how full they are; dead and delayed jobs; actions on dead jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from starlette.responses import Response

from relay.bus.http import json_response
from relay.domain.operators import Operator
from relay.domain.queues import JobPage, JobState, QueueView
from relay.ops.api.access import Caller, Operating, Reading, check_payloads
from relay.ops.api.answers import in_json
from relay.ops.api.common import PROBLEMS, Asked, Ops, outcome_of
from relay.ops.api.lines import IN_LINES, READ, Lined, in_lines
from relay.ops.api.models import OutcomeOut, PageOut, Text
from relay.ops.api.rows_out import listing_model
from relay.ops.kinds import DEAD_JOBS, Action
from relay.ops.queues import DeleteJobs, ListJobs, ListQueues, RequeueJobs

router: Final = APIRouter(prefix="/queues", tags=["queues"], responses=PROBLEMS)
_REQUEUE, _DELETE = DEAD_JOBS.action("requeue"), DEAD_JOBS.action("delete")
_STRICT = ConfigDict(extra="forbid", hide_input_in_errors=True)
Queue = Annotated[str, Path(description="A queue of the list.", max_length=100)]


class JobsAsked(BaseModel):
    """A page of jobs. ``after``: ``next`` of the page above. ``args``: also the arguments of the jobs."""

    model_config = _STRICT

    state: JobState = JobState.DEAD
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    after: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,18}$")] | None = None
    args: bool = False


class JobsChosen(BaseModel):
    """Which dead jobs: ``ids``, or ``all`` of the queue if there are at most ``limit``. And why: ``note``."""

    model_config = _STRICT

    ids: Annotated[list[Text], Field(min_length=1, max_length=10_000)] | None = None
    all: bool = False
    limit: Annotated[int, Field(ge=1, le=10_000)] = 1_000
    note: Text | None = None

    @model_validator(mode="after")
    def _one_way(self) -> JobsChosen:
        if (self.ids is not None) == self.all:
            raise ValueError("say which, in one way: ids, or all")
        return self


QueuedJob: Any = listing_model(DEAD_JOBS, "QueuedJob", "A job in a queue.", "id", optional=True)


class JobList(PageOut):
    """A page of jobs. ``next``: ``after`` of the next page. ``total``: how many there are. ``items``: the jobs.

    ``exact``: true, because all were counted. ``reach``: empty.
    """

    items: list[QueuedJob]


@router.get("", response_model=list[QueueView])
async def list_queues(ops: Asked, _: Reading) -> Response:
    """Count the waiting, delayed, fetched and dead jobs in each queue of the fleet and of tasks."""
    found = (await ops.queries.ask_async(ListQueues())).unwrap()
    return json_response([asdict(queue) for queue in found])


@router.get(
    "/{queue}/jobs",
    response_model=JobList,
    responses=IN_LINES,
    name="list_jobs",
    description=f"{DEAD_JOBS.listing} Their arguments need the right to see payloads.",
)
async def _list_jobs(
    ops: Asked, caller: Reading, queue: Queue, asked: Annotated[JobsAsked, Query()], lined: Lined
) -> Response:
    if asked.args:
        check_payloads(caller)
    one = "limit" in asked.model_fields_set
    if lined:

        async def part(after: str | None) -> tuple[Sequence[Any], str | None]:
            items, page = await _page(ops, queue, asked, asked.limit if one else READ, after or asked.after)
            return items, None if one else page.next

        return await in_lines(ops.downloads, part)
    items, page = await _page(ops, queue, asked, asked.limit, asked.after)
    # All jobs were counted and looked at, so nothing lies beyond a reach.
    return in_json({"items": items, "total": page.total, "exact": True, "reach": {}, "next": page.next})


async def _page(
    ops: Ops, queue: str, asked: JobsAsked, limit: int, after: str | None
) -> tuple[list[dict[str, Any]], JobPage]:
    query = ListJobs(queue=queue, state=asked.state, limit=limit, after=after)
    page = (await ops.queries.ask_async(query)).unwrap()
    items = [asdict(job) for job in page.items]
    for item in items:
        if not asked.args:
            del item["args"]
    return items, page


@router.post("/{queue}/requeue", response_model=OutcomeOut, name="requeue_jobs", description=_REQUEUE.about)
async def _requeue_jobs(ops: Asked, caller: Operating, queue: Queue, chosen: JobsChosen) -> Response:
    return await _act(ops, caller, _REQUEUE, RequeueJobs, queue, chosen)


@router.post("/{queue}/delete", response_model=OutcomeOut, name="delete_jobs", description=_DELETE.about)
async def _delete_jobs(ops: Asked, caller: Operating, queue: Queue, chosen: JobsChosen) -> Response:
    return await _act(ops, caller, _DELETE, DeleteJobs, queue, chosen)


async def _act(
    ops: Ops,
    caller: Caller,
    action: Action,
    do: type[RequeueJobs | DeleteJobs],
    queue: str,
    chosen: JobsChosen,
) -> Response:
    by = Operator(caller.name, chosen.note)
    command = do(queue=queue, ids=chosen.ids, limit=chosen.limit, by=by)
    return outcome_of(action.name, await ops.do(command))
