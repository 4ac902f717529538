"""Background tasks over HTTP: list, show, retry, cancel."""

from __future__ import annotations

from typing import Annotated, Any, Final, get_args
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from relay.ops.api.access import Caller, Operating, Reading
from relay.ops.api.answering import PROBLEMS, Asked, InContext, Ops, acted, detailed, page_of, paged
from relay.ops.api.models import OutcomeOut, PageOut, Selection, TasksAsked, TasksFilter, TaskStatus
from relay.ops.rows import Act, CancelTasks, FindTasks, GetTask, RetryTasks

router: Final = APIRouter(prefix="/contexts/{context}/tasks", tags=["tasks"], responses=PROBLEMS)
Chosen = Selection[UUID, TasksFilter]


@router.get("", response_model=PageOut)
async def list_tasks(
    ops: Asked, _: Reading, context: InContext, asked: Annotated[TasksAsked, Query()]
) -> Response:
    """List tasks without their payloads, the newest first."""
    wanted = asked.wanted(list(asked.status or get_args(TaskStatus)))
    return await paged(ops, page_of(FindTasks, context, wanted, asked))


@router.get("/{id}", response_model=dict[str, Any])
async def show_task(ops: Asked, caller: Reading, context: InContext, id: UUID, payload: bool = False) -> Response:
    """Show a task, and who did what to it. Its payload needs the right to see payloads."""
    return await detailed(ops, caller, GetTask(context=context, id=id), payload=payload)


@router.post("/retry", response_model=OutcomeOut)
async def retry_tasks(ops: Asked, caller: Operating, context: InContext, chosen: Chosen) -> Response:
    """Run failed tasks again, with new attempts; by id cancelled ones too."""
    return await _act(ops, caller, context, "retry", RetryTasks, chosen, ["failed"])


@router.post("/cancel", response_model=OutcomeOut)
async def cancel_tasks(ops: Asked, caller: Operating, context: InContext, chosen: Chosen) -> Response:
    """Give up tasks that do not run: pending ones, and those that wait for a worker or their next attempt."""
    return await _act(ops, caller, context, "cancel", CancelTasks, chosen, ["pending", "delivered"])


async def _act(
    ops: Ops, caller: Caller, context: str, action: str, do: type[Act], chosen: Chosen, statuses: list[str]
) -> Response:
    wanted = None if chosen.ids else (chosen.filter or TasksFilter()).wanted(statuses)
    what = {"selection": chosen, "context": context, "ids": chosen.ids, "wanted": wanted}
    return await acted(ops, caller, action, FindTasks, do, what)
