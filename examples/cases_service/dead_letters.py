"""Block 4, the DLQ subscriber: a dead letter, and any other final failure, becomes a case for the people on duty.

jetrelay records each dead letter as an incident and calls this webhook until it has an answer. Nothing is put back
by itself: `relay dlq show | requeue | discard`.
"""

from __future__ import annotations

from uuid import UUID, uuid5

from fastapi import APIRouter
from pydantic import BaseModel

from examples.cases_service.commands import OpenCase
from examples.cases_service.service import bus

router = APIRouter()

_CASES_OF_ALERTS = UUID("6f1f2f9e-6a60-4b0e-8f3e-3f2a4f1a7c55")


class Incident(BaseModel):
    id: int | UUID


class Alert(BaseModel):
    """What the webhook gets; an alert tells of all failures since the last one. A condition has no incidents."""

    text: str
    since: str
    incidents: list[Incident] = []


@router.post("/dead-letters", status_code=204)
def dead_letters(alert: Alert) -> None:
    # An alert may come twice, so the first incident makes the case's id.
    first = str(alert.incidents[0].id) if alert.incidents else f"{alert.text} {alert.since}"
    case = uuid5(_CASES_OF_ALERTS, first)
    bus.dispatch(OpenCase(id=case, account="operations", title=alert.text[:200])).unwrap()
