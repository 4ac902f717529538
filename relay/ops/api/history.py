"""The history of a context over HTTP."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from starlette.responses import Response

from relay.domain.history import Of
from relay.ops.api.access import Reading
from relay.ops.api.answers import in_json
from relay.ops.api.common import PROBLEMS, Asked, InContext
from relay.ops.api.models import Text
from relay.ops.requests import ReadHistory

router: Final = APIRouter(prefix="/contexts/{context}", tags=["contexts"], responses=PROBLEMS)


class HistoryAsked(BaseModel):
    """Which time, and which series: all if none is named."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    span: Annotated[Literal["1h", "6h", "48h", "90d"], Field(description="How much time, until now.")] = "1h"
    of: Annotated[Of | None, Field(description="Only one series: what it is about.")] = None
    name: Annotated[Text | None, Field(description="The subscription or type of tasks; none for the outbox.")] = (
        None
    )


class TimesOut(BaseModel):
    """Percentiles in seconds, exact to 9 %. ``count``: of how many."""

    count: int
    p50: float
    p95: float
    p99: float


class PointOut(BaseModel):
    """One part of a series."""

    at: Annotated[AwareDatetime, Field(description="When it begins.")]
    minutes: Annotated[int, Field(description="How many minutes were recorded; 0: a gap, all else says nothing.")]
    done: Annotated[int, Field(description="Rows that ended well.")]
    rate: Annotated[float, Field(description="The same a second.")]
    failed: Annotated[int, Field(description="Attempts that failed.")]
    died: Annotated[int, Field(description="Rows that ended without success.")]
    waiting: Annotated[int, Field(description="The most that waited.")]
    oldest_seconds: Annotated[float, Field(description="The longest that one had waited.")]
    dead: Annotated[int, Field(description="The most that waited for an operator.")]
    handling: Annotated[TimesOut | None, Field(description="How long calls took; null: unknown.")]
    waited: Annotated[TimesOut | None, Field(description="From when a row was due until it was done.")]


class SeriesOut(BaseModel):
    """One outbox, subscription or type of tasks. The last three are of five minutes each; null: a gap."""

    of: Of
    name: Annotated[str, Field(description="Empty for the outbox.", examples=["orders"])]
    points: list[PointOut]
    now: PointOut | None
    hour_ago: PointOut | None
    day_ago: PointOut | None


class MarkOut(BaseModel):
    """Something that may explain a change."""

    at: AwareDatetime
    what: Annotated[
        str, Field(description="An action of the audit log, or of a circuit.", examples=["dlq.requeue"])
    ]
    about: Annotated[str | None, Field(description="The one row, or how many there were.")]
    actor: str | None


class HistoryOut(BaseModel):
    """The series of a context, the worst first, and what happened meanwhile, the newest first."""

    context: str
    span: str
    since: AwareDatetime
    until: AwareDatetime
    part_seconds: Annotated[float, Field(description="How long a part of a series is.")]
    series: list[SeriesOut]
    marks: list[MarkOut]


@router.get(
    "/history",
    response_model=HistoryOut,
    name="read_history",
    description="What a context did over time. Points have `handling` and `waited` if one series is asked for.",
)
async def _read_history(
    ops: Asked, _: Reading, context: InContext, asked: Annotated[HistoryAsked, Query()]
) -> Response:
    query = ReadHistory(context=context, span=asked.span, of=asked.of, name=asked.name or "")
    return in_json((await ops.queries.ask_async(query)).unwrap().as_dict())
