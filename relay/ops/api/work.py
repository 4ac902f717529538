"""A subscription or a type of tasks as one object over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from relay.domain.history import Of
from relay.domain.work import HandlerAway, InState, Lag, ReasonCount, WaitsForVersion
from relay.ops.api.access import Reading
from relay.ops.api.answers import in_json
from relay.ops.api.common import PROBLEMS, Asked, InContext, Ops
from relay.ops.api.controls import ControlOut, SubscriptionOut
from relay.ops.api.history import SeriesOut
from relay.ops.api.models import Text
from relay.ops.work import ReadWork

router: Final = APIRouter(prefix="/contexts/{context}", tags=["contexts"], responses=PROBLEMS)


class WorkAsked(BaseModel):
    """The time of the history."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    span: Annotated[Literal["1h", "6h", "48h", "90d"], Field(description="How much history, until now.")] = "1h"


class RunningNow(BaseModel):
    """What runs now. ``name``: the type. ``since``: when it was claimed. ``too_long``: for longer than it may."""

    id: str
    name: str | None
    attempts: int
    since: datetime | None
    seconds: float | None
    too_long: bool


class WorkNow(BaseModel):
    """What waits, runs and fails now. Of each state at most 10,001 rows are counted.

    ``waiting``: all that will be handled. ``oldest_seconds``: the age of the oldest of them. ``states``: how many
    are in each. ``causes``: why the last thousand fail or died. ``parked_keys``: how many keys are set aside.
    ``controls``: its pauses and limits. ``running``: at most 20 rows. ``history``: null if nothing is recorded.
    """

    context: str
    waiting: int
    oldest_seconds: float
    states: list[InState]
    causes: list[ReasonCount]
    parked_keys: int
    controls: list[ControlOut]
    running: list[RunningNow]
    history: SeriesOut | None


class SubscriptionNow(WorkNow, SubscriptionOut):
    """A subscription now. ``away``: its handler does not answer; null if it does.

    ``lag``: what JetStream has for it; null if NATS does not answer. ``versions``: those that messages wait for,
    and which releases of the fleet handle each; null if Redis does not answer.
    """

    away: HandlerAway | None
    lag: Lag | None
    versions: list[WaitsForVersion]


class TaskTypeNow(WorkNow):
    """A type of tasks now. ``queues``: of its unfinished tasks. ``reason``: why it is paused or limited."""

    name: str
    state: str
    until: datetime | None
    by: str | None
    since: datetime | None
    reason: str | None
    limit: str | None
    queues: list[str]


async def _work(
    ops: Ops, context: str, of: Literal[Of.SUBSCRIPTION, Of.TASK], name: str, span: WorkAsked
) -> Response:
    found = (await ops.queries.ask_async(ReadWork(context=context, of=of, name=name, span=span.span))).unwrap()
    shown = found.as_dict(datetime.now(UTC))
    for it in ("away", "lag", "versions") if of is Of.TASK else ("queues",):
        del shown[it]
    return in_json(shown)


@router.get(
    "/subscriptions/{id}",
    response_model=SubscriptionNow,
    name="show_subscription",
    description="Show one subscription: what waits, runs and fails, its history and settings, its pause or limit.",
)
async def _subscription(
    ops: Asked, _: Reading, context: InContext, id: Text, asked: Annotated[WorkAsked, Query()]
) -> Response:
    return await _work(ops, context, Of.SUBSCRIPTION, id, asked)


@router.get(
    "/task-types/{id}",
    response_model=TaskTypeNow,
    name="show_task_type",
    description="Show one type of tasks: what waits, runs and fails, its history, its pause or limit.",
)
async def _task_type(
    ops: Asked, _: Reading, context: InContext, id: Text, asked: Annotated[WorkAsked, Query()]
) -> Response:
    return await _work(ops, context, Of.TASK, id, asked)
