"""Block 5, the publisher: which of the things that happen to a case leave the service, and which tasks they cause.

These handlers run in the command's transaction and write to the outbox only. The workers (`dramatiq
relay.actors`) publish what was committed.
"""

from __future__ import annotations

from uuid import UUID

from pydantic import BaseModel
from sqlalchemy.orm import Session

from examples.cases_service.domain import CaseClosed, CaseOpened
from examples.cases_service.worker import Confirmation, confirm_case
from relay import event
from relay.bus import DomainEventBus, UnitOfWork

events = DomainEventBus()


@event("case_opened", aggregate_type="case", aggregate_id="case_id")
class CaseOpenedV1(BaseModel):
    """For other services: the form of this event does not change when the domain does."""

    case_id: UUID
    account: str
    title: str


@event("case_closed", aggregate_type="case", aggregate_id="case_id")
class CaseClosedV1(BaseModel):
    case_id: UUID
    reason: str


@events.on(CaseOpened)
def tell_others(opened: CaseOpened, unit: UnitOfWork[Session]) -> None:
    unit.publish(CaseOpenedV1(case_id=opened.case_id, account=opened.account, title=opened.title))


@events.on(CaseOpened)
def confirm(opened: CaseOpened, unit: UnitOfWork[Session]) -> None:
    unit.schedule(confirm_case, Confirmation(case_id=opened.case_id))


@events.on(CaseClosed)
def tell_of_the_end(closed: CaseClosed, unit: UnitOfWork[Session]) -> None:
    unit.publish(CaseClosedV1(case_id=closed.case_id, reason=closed.reason))
