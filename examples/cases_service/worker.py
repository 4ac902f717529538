"""Block 7, the worker: background tasks of this service, run by `dramatiq relay.actors`."""

from __future__ import annotations

import logging
from uuid import UUID

from pydantic import BaseModel
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from examples.cases_service.database import confirmations
from tasks import task

log = logging.getLogger("cases.worker")


class Confirmation(BaseModel):
    case_id: UUID


@task("confirm_case")
def confirm_case(confirmation: Confirmation, session: Session) -> None:
    """Tell the customer that the case is known. The note of it commits with the task: once in effect."""
    session.execute(insert(confirmations).values(case_id=confirmation.case_id).on_conflict_do_nothing())
    log.info("confirmed a case")
